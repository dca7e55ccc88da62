"""Training a tokenizer, and the report of a prepared corpus, for `lm prepare` and `lm train`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from cli.console.escapes import format_json_line
from cli.console.messages import print_labelled, print_note
from cli.console.numbers import format_bytes
from lm.config.tokenizer import TokenizerConfig
from lm.corpus.store import Manifest, PreparedFolder
from lm.corpus.survey import Corpus, load_or_train_tokenizer
from lm.tokenizer.tokenizer import Tokenizer
from lm.tokenizer.training import SAMPLE_BYTES

MUCH_REPEATED = 0.05  # as a fraction of the held-out text; even stories made from templates stay below 0.02


def train_or_load_tokenizer(
    corpus: Corpus,
    config: TokenizerConfig,
    *,
    special: Sequence[str] | None = None,
    unknown: str | None = None,
    has_mask: bool = False,
) -> Tokenizer:
    """Train a tokenizer on a corpus, or load it from the cache."""
    if config.kind == "bpe" and corpus.files_bytes > SAMPLE_BYTES:
        print_note(f"tokenizer trained on a sample: {format_bytes(SAMPLE_BYTES)} of {format_bytes(corpus.files_bytes)}")
    return load_or_train_tokenizer(corpus, config, special_tokens=special or (), unknown=unknown, has_mask=has_mask)


def print_prepared(prepared: PreparedFolder, *, as_json: bool) -> None:
    """Print a table of the splits on stderr, and where the tokens are; with `as_json`, also JSON on stdout."""
    manifest = prepared.manifest
    table = Table("split", box=None, pad_edge=False)
    for column in ("documents" if manifest.kind == "text" else manifest.kind, "tokens", "text", "bytes per token"):
        table.add_column(column, justify="right")
    for name, split in manifest.splits.items():
        compression = f"{split.bytes_per_token:.2f}" if split.tokens else "–"
        table.add_row(name, f"{split.documents:,}", f"{split.tokens:,}", format_bytes(split.bytes), compression)
    Console(stderr=True, highlight=False).print(table)
    if prepared.chunks_reused:
        print_note(f"reused {prepared.chunks_reused:,} chunks of an interrupted preparation")
    print_note(f"{'reused' if prepared.reused else 'wrote'} {prepared.folder}")
    if manifest.part is not None:
        print_note(f"part {manifest.part[0]} of {manifest.part[1]}, {len(manifest.chunks):,} chunks")
    warn_of_repetition(manifest)
    if not as_json:
        return
    splits = {
        name: {"documents": split.documents, "tokens": split.tokens, "bytes": split.bytes}
        for name, split in manifest.splits.items()
    }
    report = {
        "folder": str(prepared.folder),
        "reused": prepared.reused,
        "chunks_reused": prepared.chunks_reused,
        "vocab_size": manifest.vocab_size,
        "tokenizer": manifest.tokenizer,
        "chunks": len(manifest.chunks),
        "splits": splits,
        "part": manifest.part,
        "repetition": manifest.repetition and vars(manifest.repetition),
    }
    print(format_json_line(report))


def warn_of_repetition(manifest: Manifest) -> None:
    """Report duplicated text on stderr, and warn if it makes the validation loss too low."""
    repetition = manifest.repetition
    if repetition is None:
        return
    documents = sum(split.documents for split in manifest.splits.values())
    if repetition.documents:
        rows = "documents" if manifest.kind == "text" else manifest.kind
        split = ", all in the same split" if manifest.kind != "text" and not repetition.held_out else ""
        fraction = repetition.documents / documents
        copies = f"{repetition.documents:,} of {documents:,} {rows} ({fraction:.1%}) repeat another{split}"
        print_labelled("copies", copies)
    if repetition.held_out is not None and repetition.held_out >= MUCH_REPEATED:
        print_labelled(
            "warning",
            f"{repetition.held_out:.0%} of the held-out text occurs in the training text too: the validation loss "
            "will look better than it is",
        )
