"""Reports of `lm tokenizer`: of training, and the vocabulary, compression and coloured tokens of `inspect`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.console.colours import BANDS, BLACK
from cli.console.escapes import format_label
from cli.console.numbers import format_bytes
from cli.console.progress import show_tokenization_progress
from lm.config.tokenizer import TokenizerConfig
from lm.corpus.text_corpus import Corpus, read_training_texts
from lm.text.text_files import TextFile
from lm.tokenizer.inspection import CompressionStats, format_token, measure_compression
from lm.tokenizer.tokenizer import Tokenizer
from lm.tokenizer.training import TextSample, TrainedTokenizer

Tokens = Sequence[int]

_COLOURS = tuple(f"color({BLACK}) on color({band})" for band in BANDS)
_SAMPLE_BYTES = 1_000_000


def build_training_report(
    trained: TrainedTokenizer, corpus: Corpus, config: TokenizerConfig, out: Path
) -> dict[str, Any]:
    """Return the report as plain values, with the compression of a sample of the corpus."""
    sample = TextSample(read_training_texts(corpus), corpus_bytes=corpus.files_bytes, limit=_SAMPLE_BYTES)
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


def format_training_report(report: Mapping[str, Any]) -> str:
    sample, whole = report["sample_bytes"], report["corpus_bytes"]
    compression = f", {report['bytes_per_token']:.2f} bytes per token" if report["bytes_per_token"] else ""
    if report["kind"] == "byte":
        used = "nothing to train"
    elif sample < whole:
        used = f"trained on a sample: {format_bytes(sample)} of {format_bytes(whole)}"
    else:
        used = f"trained on {format_bytes(whole)}"
    return f"{report['path']}: {report['kind']}, vocabulary {report['vocab_size']:,}{compression}; {used}"


def tokenizer_to_dict(
    tokenizer: Tokenizer, longest: Tokens, fit: CompressionStats | None, split: Tokens | None
) -> dict[str, Any]:
    """Return the tokenizer, its compression and the tokens of a text as plain values."""

    def listed(tokens: Tokens) -> list[dict[str, Any]]:
        spelled = ((index, tokenizer.token_bytes(index)) for index in tokens)
        return [{"id": index, "text": data.decode(errors="replace"), "bytes": list(data)} for index, data in spelled]

    files = fit and {
        "bytes": fit.bytes,
        "tokens": fit.tokens,
        "words": fit.words,
        "bytes_per_token": fit.bytes_per_token,
        "tokens_per_word": fit.tokens_per_word,
    }
    return {
        "kind": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "special_tokens": tokenizer.special_tokens,
        "longest": listed(longest),
        "files": files,
        "tokens": None if split is None else listed(split),
        "sha256": tokenizer.sha256,
    }


def measure_with_progress(tokenizer: Tokenizer, files: Sequence[TextFile], separator: str) -> CompressionStats:
    """Measure the compression of files, with a bar on stderr if that is a terminal."""
    with show_tokenization_progress() as progress:
        return measure_compression(tokenizer, files, separator, progress=progress)


def print_summary(tokenizer: Tokenizer, longest: Tokens, fit: CompressionStats | None) -> None:
    """Print vocabulary and compression on stdout; long lines wrap on a terminal."""
    special = ", ".join(f"{format_label(name)} ({index})" for name, index in tokenizer.special_tokens.items())
    rows = [
        ("kind", tokenizer.kind),
        ("vocabulary", f"{tokenizer.vocab_size:,}"),
        ("special tokens", special or "none"),
        ("longest tokens", "  ".join(format_token(tokenizer.token_bytes(index)) for index in longest)),
    ]
    if fit:
        rows += [
            ("files", f"{format_bytes(fit.bytes)}, {fit.tokens:,} tokens, {fit.words:,} words"),
            ("bytes per token", _ratio(fit.bytes_per_token)),
            ("tokens per word", _ratio(fit.tokens_per_word)),
        ]
    _print_rows(rows)


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _print_rows(rows: Sequence[tuple[str, str]]) -> None:
    if not sys.stdout.isatty():
        width = max(len(name) for name, _ in rows)
        for name, text in rows:
            print(f"{name:<{width}}  {text}")
        return
    grid = Table.grid(padding=(0, 2))
    for name, text in rows:
        grid.add_row(Text(name, no_wrap=True), Text(text))
    Console(highlight=False).print(grid)


def print_tokens(tokenizer: Tokenizer, tokens: Tokens) -> None:
    """Print tokens on stdout: on a terminal in lines with their IDs below, else one per line after its ID."""
    if not sys.stdout.isatty():
        width = max((len(str(index)) for index in tokens), default=0)
        for index in tokens:
            print(f"{index:>{width}}  {format_token(tokenizer.token_bytes(index))}")
        return
    console = Console(highlight=False)
    coloured = console.color_system is not None and not console.no_color
    for line in layout_lines([(index, tokenizer.token_bytes(index)) for index in tokens], console.width):
        for row in _render(line, coloured=coloured):
            console.print(row, no_wrap=True, overflow="ignore", crop=False)


@dataclass(frozen=True)
class TokenCell:
    """A rendered token: text, ID below it, and one of two colours."""

    text: str
    index: str
    is_odd: bool

    @property
    def width(self) -> int:
        """Return the number of terminal columns."""
        return max(cell_len(self.text), len(self.index))


def layout_lines(tokens: Iterable[tuple[int, bytes]], width: int) -> Iterator[list[TokenCell]]:
    """Yield the cells that fit a terminal line; a token that ends with a line end ends one."""
    line: list[TokenCell] = []
    for number, (index, data) in enumerate(tokens):
        cell = TokenCell(_clip(format_token(data), width - 1), str(index), number % 2 == 1)
        if line and sum(other.width + 1 for other in line) + cell.width + 1 > width:
            yield line
            line = []
        line.append(cell)
        if data.endswith(b"\n"):
            yield line
            line = []
    if line:
        yield line


def _clip(text: str, width: int) -> str:
    return text if cell_len(text) <= width else chop_cells(text, width - 1)[0] + "…"


def _render(line: Sequence[TokenCell], *, coloured: bool) -> Iterator[Text]:
    tokens, ids = Text(), Text()
    for cell in line:
        tokens.append(cell.text, _COLOURS[cell.is_odd] if coloured else "")
        tokens.append(" " * (cell.width - cell_len(cell.text)) + (" " if coloured else "|"))
        ids.append(cell.index.ljust(cell.width + 1), "dim")
    yield tokens
    yield ids
