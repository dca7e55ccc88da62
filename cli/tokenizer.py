"""`lm tokenizer`: train, encode, decode and inspect tokenizers."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import completion
from cli.arguments import AsJson, CorpusFiles
from cli.console.text import (
    escape_for_stream,
    format_bytes,
    format_json_line,
    format_label,
    print_note,
    print_notes,
)
from cli.loading import load_tokenizer
from cli.options import Options, with_settings
from lm.config.run_config import DataConfig, FilesConfig, TokenizerConfig
from lm.errors import InputError
from lm.files import check_writable
from lm.text.decode import decode_blocks

if TYPE_CHECKING:
    from lm.tokenizer.tokenizer import Tokenizer

app = typer.Typer(help="Train and use a tokenizer: encode, decode, inspect.", rich_markup_mode=None)

_TokenizerPath = Annotated[
    Path,
    typer.Argument(
        metavar="TOKENIZER",
        help="A tokenizer.json, or a run, checkpoint or folder with one.",
        autocompletion=completion.complete_runs,
    ),
]


@app.command()
@with_settings(
    {"tokenizer": TokenizerConfig, "files": FilesConfig, "data": DataConfig},
    "kind vocab_size merges text_column include exclude encoding format",
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

    config, data = options.build(TokenizerConfig), options.build(DataConfig, validation="0")
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
        str | None, typer.Argument(metavar="TEXT", help="The text; without it, all of stdin, line ends included.")
    ] = None,
    *,
    parse_special: Annotated[bool, typer.Option("--parse-special", help="Parse special tokens in the text.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the ids of a text: one line, with spaces between them."""
    ids = load_tokenizer(tokenizer).encode(_read_stdin() if text is None else text, parse_special=parse_special)
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
    end = "\n" if sys.stdout.isatty() and not text.endswith("\n") else ""
    sys.stdout.flush()
    sys.stdout.buffer.write((escape_for_stream(text) + end).encode())
    sys.stdout.buffer.flush()


@app.command()
def inspect(
    tokenizer: _TokenizerPath,
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="A text to split; - is stdin.")] = None,
    *,
    as_json: AsJson = False,
) -> None:
    r"""Show what is in a tokenizer, and how a text splits.

    In tokens · is a space and \xed a byte of a character.

    Examples:
      lm tokenizer inspect runs/novel "Wo bist du?"
    """
    loaded = load_tokenizer(tokenizer)
    ids = loaded.encode(_read_stdin() if text == "-" else text or "")
    spelled = [(index, loaded.token_bytes(index)) for index in ids]
    if as_json:
        tokens = [{"id": index, "text": data.decode(errors="replace"), "bytes": [*data]} for index, data in spelled]
        print(format_json_line({**_describe(loaded), "tokens": tokens}))
        return
    special = ", ".join(f"{format_label(name)} ({index})" for name, index in loaded.special_tokens.items())
    print(f"kind            {loaded.kind}\nvocabulary      {loaded.vocab_size:,}\nspecial tokens  {special or 'none'}")
    if spelled:
        print()
        width = len(str(max(ids)))
        for index, data in spelled:
            label = format_label(data.decode(errors="backslashreplace").replace(" ", "·"))
            print(f"{index:>{width}}  {label}")


def _describe(tokenizer: Tokenizer) -> dict[str, Any]:
    names = ("kind", "vocab_size", "special_tokens", "sha256")
    return {name: getattr(tokenizer, name) for name in names}


def _read_stdin() -> str:
    return "".join(decode_blocks([sys.stdin.buffer.read()], "stdin"))
