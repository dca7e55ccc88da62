"""The report of `lm tokenizer train`: tokenizer, corpus and compression."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cli.console.numbers import format_bytes
from lm.config.tokenizer import TokenizerConfig
from lm.corpus.corpus import Corpus, read_training_texts
from lm.tokenizer.training import TextSample, TrainedTokenizer

_MEASURED_BYTES = 1_000_000


def build_report(trained: TrainedTokenizer, corpus: Corpus, config: TokenizerConfig, out: Path) -> dict[str, Any]:
    """Return the report as plain values, with the compression of a sample of the corpus."""
    sample = TextSample(read_training_texts(corpus), corpus_bytes=corpus.files_bytes, limit=_MEASURED_BYTES)
    tokens = sum(len(ids) for text in sample for ids in trained.tokenizer.encode_batch([text]))
    return {
        "path": str(out),
        "kind": config.kind,
        "vocab_size": trained.tokenizer.vocab_size,
        "special_tokens": trained.tokenizer.special_tokens,
        "bytes_per_token": round(sample.used / tokens, 4) if tokens else None,
        "sample_bytes": trained.sample_bytes,
        "corpus_bytes": trained.corpus_bytes,
        "sha256": trained.tokenizer.sha256,
    }


def format_report(report: Mapping[str, Any]) -> str:
    """Return the report as a sentence."""
    sample, whole = report["sample_bytes"], report["corpus_bytes"]
    compression = f", {report['bytes_per_token']:.2f} bytes per token" if report["bytes_per_token"] else ""
    if report["kind"] == "byte":
        used = "nothing to train"
    elif sample < whole:
        used = f"trained on a sample: {format_bytes(sample)} of {format_bytes(whole)}"
    else:
        used = f"trained on {format_bytes(whole)}"
    return f"{report['path']}: {report['kind']}, vocabulary {report['vocab_size']:,}{compression}; {used}"
