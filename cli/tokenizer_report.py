"""Reports of `lm tokenizer`: of training, and the vocabulary, compression and tokens of `inspect`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cli.console.text import format_bytes, format_label
from lm.corpus.survey import Corpus, read_training_texts
from lm.tokenizer.inspection import CompressionStats, format_token
from lm.tokenizer.tokenizer import Tokenizer
from lm.tokenizer.training import TextSample, TrainedTokenizer

_SAMPLE_BYTES = 1_000_000


def build_training_report(trained: TrainedTokenizer, corpus: Corpus, out: Path) -> dict[str, Any]:
    """Return the report as plain values, with the compression of a sample of the corpus."""
    sample = TextSample(read_training_texts(corpus), corpus_bytes=corpus.files_bytes, limit=_SAMPLE_BYTES)
    tokens = sum(len(ids) for text in sample for ids in trained.tokenizer.encode_batch([text]))
    return {
        "path": str(out),
        "kind": trained.tokenizer.kind,
        "vocab_size": trained.tokenizer.vocab_size,
        "special_tokens": trained.tokenizer.special_tokens,
        "bytes_per_token": round(sample.used / tokens, 4) if tokens else None,
        "sample_bytes": trained.sample_bytes,
        "corpus_bytes": trained.corpus_bytes,
        "sha256": trained.tokenizer.sha256,
    }


def format_training_report(report: Mapping[str, Any]) -> str:
    sample, whole = format_bytes(report["sample_bytes"]), format_bytes(report["corpus_bytes"])
    compression = f", {report['bytes_per_token']:.2f} bytes per token" if report["bytes_per_token"] else ""
    used = f"a sample: {sample} of {whole}" if report["sample_bytes"] < report["corpus_bytes"] else whole
    trained = "" if report["kind"] == "byte" else f"; trained on {used}"
    return f"{report['path']}: {report['kind']}, vocabulary {report['vocab_size']:,}{compression}{trained}"


def tokenizer_to_dict(
    tokenizer: Tokenizer, longest: Sequence[int], fit: CompressionStats | None, split: Sequence[int] | None
) -> dict[str, Any]:
    """Return the tokenizer, its compression and the tokens of a text as plain values."""

    def listed(tokens: Sequence[int]) -> list[dict[str, Any]]:
        spelled = ((index, tokenizer.token_bytes(index)) for index in tokens)
        return [{"id": index, "text": data.decode(errors="replace"), "bytes": list(data)} for index, data in spelled]

    return {
        "kind": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "special_tokens": tokenizer.special_tokens,
        "longest": listed(longest),
        "files": fit and fit.to_dict(),
        "tokens": None if split is None else listed(split),
        "sha256": tokenizer.sha256,
    }


def print_summary(tokenizer: Tokenizer, longest: Sequence[int], fit: CompressionStats | None) -> None:
    """Print vocabulary and compression on stdout."""
    special = ", ".join(f"{format_label(name)} ({index})" for name, index in tokenizer.special_tokens.items())
    rows = {
        "kind": tokenizer.kind,
        "vocabulary": f"{tokenizer.vocab_size:,}",
        "special tokens": special or "none",
        "longest tokens": "  ".join(format_token(tokenizer.token_bytes(index)) for index in longest),
    }
    if fit:
        rows["files"] = f"{format_bytes(fit.bytes)}, {fit.tokens:,} tokens, {fit.words:,} words"
        rows |= {name.replace("_", " "): f"{ratio:.3f}" for name, ratio in fit.ratios().items() if ratio is not None}
    for name, text in rows.items():
        print(f"{name:<15}  {text}")


def print_tokens(tokenizer: Tokenizer, tokens: Sequence[int]) -> None:
    """Print tokens on stdout, one per line after its ID."""
    width = max((len(str(index)) for index in tokens), default=0)
    for index in tokens:
        print(f"{index:>{width}}  {format_token(tokenizer.token_bytes(index))}")
