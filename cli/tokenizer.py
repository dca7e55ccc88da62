"""`lm tokenizer`: train, encode, decode and inspect tokenizers."""

from __future__ import annotations

import os
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
    format_value,
    print_note,
    print_notes,
)
from cli.loading import load_tokenizer
from cli.options import Options, with_settings
from lm.config.data import DataConfig, FilesConfig
from lm.config.tokenizer import TokenizerConfig
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
    "kind vocab_size min_frequency merges text_column include exclude encoding format",
    common="--out --force --kind --vocab-size --special --text-column --json",
)
def train(
    corpus: CorpusFiles,
    *,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The tokenizer.json to write.")],
    special: Annotated[
        list[str] | None, typer.Option("--special", metavar="TOKEN", help="Special token to add. Repeatable.")
    ] = None,
    unknown: Annotated[
        str | None, typer.Option(metavar="CHARACTER", help="With --kind char: token of unknown characters.")
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
    added: dict[str, Any] = {"special_tokens": special or (), "unknown": unknown if config.kind == "char" else None}
    files = find_text_files(corpus, data, options.build(FilesConfig))
    surveyed = scan_corpus(files, data)
    print_notes(surveyed.notes)
    size = surveyed.files_bytes
    tokenizer, sampled, _ = training.train(read_training_texts(surveyed), config, corpus_bytes=size, **added)
    tokenizer.save(out)
    trained = f"{format_bytes(sampled)} of {format_bytes(size)}"
    print_note(f"{out}: {tokenizer.kind}, vocabulary {tokenizer.vocab_size:,}, trained on {trained}")
    if as_json:
        report = {"path": str(out), **_describe(tokenizer), "sample_bytes": sampled, "corpus_bytes": size}
        print(format_json_line(report))


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
@with_settings({"files": FilesConfig, "data": DataConfig}, "text_column include exclude encoding format")
def inspect(
    tokenizer: _TokenizerPath,
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT|FILE…", help="Files to measure the tokenizer on, or a text to split; - is stdin."),
    ] = None,
    *,
    as_json: AsJson = False,
    options: Options,
) -> None:
    r"""Show what is in a tokenizer, how well it fits files, and how a text splits.

    In tokens · is a space, ⏎ a line end, ⇥ a tab, and \xed a byte of a character.

    Examples:
      lm tokenizer inspect runs/novel "Wo bist du?"
      lm tokenizer inspect tokenizer.json held-out.txt other.txt
    """
    from lm.tokenizer.inspection import format_token

    loaded = load_tokenizer(tokenizer)
    ids, files = None, {}
    if texts and len(texts) == 1 and not os.path.exists(texts[0]):  # noqa: PTH110 (Path.exists raises for a long text)
        ids = loaded.encode(_read_stdin() if texts == ["-"] else texts[0])
    elif texts:
        files = _measure_files(loaded, texts, options)
    if as_json:
        spelled = [(index, loaded.token_bytes(index)) for index in ids or ()]
        tokens = [{"id": index, "text": data.decode(errors="replace"), "bytes": [*data]} for index, data in spelled]
        print(format_json_line({**_describe(loaded), "files": files, "tokens": tokens}))
        return
    special = ", ".join(f"{format_label(name)} ({index})" for name, index in loaded.special_tokens.items())
    print(f"kind            {loaded.kind}\nvocabulary      {loaded.vocab_size:,}\nspecial tokens  {special or 'none'}")
    if files:
        from cli.console.tables import print_table

        rows = [
            (name, *(f"{value:,}" if isinstance(value, int) else format_value(value, 3) for value in fit.values()))
            for name, fit in files.items()
        ]
        print()
        print_table(("file", "bytes", "tokens", "words", "bytes/token", "tokens/word"), rows)
    if ids is not None:
        print()
        width = max((len(str(index)) for index in ids), default=0)
        for index in ids:
            print(f"{index:>{width}}  {format_token(loaded.token_bytes(index))}")


def _measure_files(tokenizer: Tokenizer, names: list[str], options: Options) -> dict[str, dict[str, float | None]]:
    """Return bytes, tokens, words and their ratios by file."""
    from cli.console.progress import show_bytes
    from lm.text.find import find_text_files
    from lm.tokenizer.inspection import measure_compression

    files = find_text_files(names, options.build(DataConfig), options.build(FilesConfig))
    fits = {}
    for file in files:
        with show_bytes(file.name) as progress:
            fits[file.name] = measure_compression(tokenizer, [file], progress=progress).to_dict()
    print_notes(note for file in files for note in file.notes)
    return fits


def _describe(tokenizer: Tokenizer) -> dict[str, Any]:
    names = ("kind", "vocab_size", "special_tokens", "sha256")
    return {name: getattr(tokenizer, name) for name in names}


def _read_stdin() -> str:
    return "".join(decode_blocks([sys.stdin.buffer.read()], "stdin", keep_line_ends=True))
