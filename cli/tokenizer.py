"""`lm tokenizer`: train, encode, decode and inspect tokenizers."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.arguments import AsJson, CorpusFiles
from cli.console import (
    escape_for_stream,
    format_bytes,
    format_json_line,
    format_label,
    print_note,
    print_notes,
)
from cli.console.figures import print_table
from cli.loading import load_tokenizer, run_argument
from cli.options import Options, with_settings
from lm.config.run_config import DataConfig, FilesConfig, TokenizerConfig
from lm.errors import InputError
from lm.files import check_writable
from lm.text.decode import decode_blocks

if TYPE_CHECKING:
    from lm.text.text_file import TextFile
    from lm.tokenizer import Tokenizer

app = typer.Typer(help="Train and use a tokenizer: encode, decode, inspect.", rich_markup_mode=None)

_TokenizerPath = Annotated[
    Path,
    run_argument("TOKENIZER", "A tokenizer.json, or a run, checkpoint or folder with one."),
]


@app.command()
@with_settings(
    {"tokenizer": TokenizerConfig, "files": FilesConfig, "data": DataConfig},
    "kind vocab_size merges inline_casing text_column include exclude encoding format",
    common="--out --force --kind --vocab-size --special --text-column --json",
)
def train(
    corpus: CorpusFiles,
    *,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The tokenizer.json to write.")],
    special: Annotated[
        list[str] | None, typer.Option("--special", metavar="TOKEN", help="Special token to add. Repeatable.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
    as_json: AsJson = False,
    options: Options,
) -> None:
    """Train a tokenizer on text files.

    The result is a plain tokenizer.json that the tokenizers and transformers libraries load too.
    """
    check_writable(out)
    if out.exists() and not force:
        raise InputError(f"{out}: already exists; choose another name, or --force")
    from lm.corpus.survey import read_training_texts, scan_corpus
    from lm.text.find import find_text_files
    from lm.tokenizer import training

    config, data = options.build(TokenizerConfig), DataConfig(**{"validation": "0", **options.values["data"]})
    surveyed = scan_corpus(find_text_files(corpus, data, options.build(FilesConfig)), data)
    print_notes(surveyed.notes)
    texts, size = read_training_texts(surveyed), surveyed.files_bytes
    tokenizer = training.train(texts, config, corpus_bytes=size, special_tokens=special or ())
    tokenizer.save(out)
    print_note(f"{out}: {tokenizer.kind}, vocabulary {tokenizer.vocab_size:,}, of {format_bytes(size)} of text")
    if as_json:
        print(format_json_line({"path": str(out), **_describe(tokenizer), "corpus_bytes": size}))


@app.command()
def encode(
    tokenizer: _TokenizerPath,
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="The text; - or none: all of stdin, line ends included.")
    ] = None,
    *,
    parse_special: Annotated[bool, typer.Option("--parse-special", help="Parse special tokens in the text.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the ids of a text: one line, with spaces between them."""
    ids = load_tokenizer(tokenizer).encode(_read_stdin() if text in (None, "-") else text, parse_special=parse_special)
    print(format_json_line(ids) if as_json else " ".join(map(str, ids)))


@app.command()
def decode(
    tokenizer: _TokenizerPath,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="IDS", help="Ids as encode prints them; none: stdin.")
    ] = None,
    *,
    skip_special: Annotated[bool, typer.Option("--skip-special", help="Leave special tokens out.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the text of ids exactly; only a terminal gets a line end after it."""
    loaded = load_tokenizer(tokenizer)
    words = re.findall(r"[^\s,[\]]+", " ".join(ids) if ids else _read_stdin())
    try:
        text = loaded.decode([*map(int, words)], skip_special=skip_special)
    except ValueError as error:
        raise InputError(f"token IDs are integers separated by spaces: {error}") from None
    if as_json:
        print(format_json_line({"text": text}))
        return
    print(escape_for_stream(text), end="\n" if sys.stdout.isatty() and not text.endswith("\n") else "")


@app.command()
def inspect(
    tokenizer: _TokenizerPath,
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT|FILE…]", help="A text to split, - is stdin; or files to measure the tokenizer on."
        ),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    r"""Show what is in a tokenizer, how a text splits, and how well it fits files.

    In tokens · is a space and \xed a byte of a character. Unknown tokens stand for text without a token; lost bytes are
    those, without white space, that decoding does not restore.

    Examples:
      lm tokenizer inspect runs/novel "Wo bist du?"
      lm tokenizer inspect tokenizer.json held-out.txt other.txt
    """
    from lm.text.find import find_text_files

    loaded = load_tokenizer(tokenizer)
    files, ids = [], list[int]()
    if texts and len(texts) == 1 and not os.path.exists(texts[0]):  # noqa: PTH110 (a text of any length)
        ids = loaded.encode(_read_stdin() if texts == ["-"] else texts[0])
    else:
        files = [_measure(loaded, file) for file in find_text_files(texts or ())]
    spelled = [(index, loaded.token_bytes(index)) for index in ids]
    if as_json:
        tokens = [{"id": index, "text": data.decode(errors="replace"), "bytes": [*data]} for index, data in spelled]
        print(format_json_line({**_describe(loaded), "files": files, "tokens": tokens}))
        return
    special = ", ".join(f"{format_label(name)} ({index})" for name, index in loaded.special_tokens.items())
    print(f"kind            {loaded.kind}\nvocabulary      {loaded.vocab_size:,}\nspecial tokens  {special or 'none'}")
    if files:
        print()
        print_table([name.replace("_", " ") for name in files[0]], [[*row.values()] for row in files])
    if spelled:
        print()
        width = len(str(max(ids)))
        for index, data in spelled:
            label = format_label(data.decode(errors="backslashreplace").replace(" ", "·"))
            print(f"{index:>{width}}  {label}")


def _measure(tokenizer: Tokenizer, file: TextFile) -> dict[str, Any]:
    """Count the tokens of a file, and what they do not restore."""
    from lm.tokenizer import encode_pieces, split_into_pieces
    from lm.tokenizer.offsets import TokenOffsets

    offsets, counts = TokenOffsets(tokenizer), [(0,) * 5]
    for piece in split_into_pieces(file.records(), tokenizer):
        (ids,) = encode_pieces([piece], tokenizer)
        counts.append((len(ids), len(piece.text.encode()), len(piece.text), *offsets.round_trip_loss(piece, ids)))
    tokens, size, characters, unknown, lost = map(sum, zip(*counts, strict=True))
    return {
        "file": file.name, "tokens": tokens, "bytes_per_token": size / max(1, tokens),
        "characters_per_token": characters / max(1, tokens), "unknown_tokens": unknown, "lost_bytes": lost,
    }  # fmt: skip


def _describe(tokenizer: Tokenizer) -> dict[str, Any]:
    names = ("kind", "vocab_size", "special_tokens", "sha256")
    return {name: getattr(tokenizer, name) for name in names}


def _read_stdin() -> str:
    return "".join(decode_blocks([sys.stdin.buffer.read()], "stdin"))
