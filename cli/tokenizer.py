"""`lm tokenizer`: train, encode, decode and inspect tokenizers."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from cli.arguments import AsJson, CorpusFiles, SpecialTokens, TokenizerPath, UnknownToken
from cli.console.escapes import escape_for_stream, format_json_line
from cli.loading import load_tokenizer
from cli.options import Options, with_settings
from lm.config.data import DataConfig, FilesConfig
from lm.config.tokenizer import TokenizerConfig
from lm.errors import InputError, UsageError
from lm.files import check_writable, is_file

app = typer.Typer(help="Train and use a tokenizer: encode, decode, inspect.", rich_markup_mode=None)

_LONGEST = 12


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
    special: SpecialTokens = None,
    unknown: UnknownToken = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
    as_json: AsJson = False,
    options: Options,
) -> None:
    """Train a tokenizer on text files.

    The result is a plain tokenizer.json that the tokenizers and transformers libraries load too.
    """
    if out.is_dir():
        raise UsageError(f"{out} is a folder; name the file to write (--out)")
    check_writable(out)
    if out.exists() and not force:
        raise InputError(f"{out}: already exists; choose another name, or --force")
    from cli import tokenizer_report
    from cli.console.messages import print_note, print_notes
    from lm.corpus.survey import read_training_texts, scan_corpus
    from lm.text.find import find_text_files
    from lm.tokenizer import training

    config = options.build(TokenizerConfig)
    unknown = unknown if config.kind == "char" else None
    training.check_settings(config, special_tokens=special or (), unknown=unknown)
    data = options.build(DataConfig, validation="0")
    files = find_text_files(corpus, data, options.build(FilesConfig))
    surveyed = scan_corpus(files, data)
    print_notes(surveyed.notes)
    trained = training.train(
        read_training_texts(surveyed),
        config,
        corpus_bytes=surveyed.files_bytes,
        special_tokens=special or (),
        unknown=unknown,
    )
    trained.tokenizer.save(out)
    report = tokenizer_report.build_training_report(trained, surveyed, out)
    print_note(tokenizer_report.format_training_report(report))
    if as_json:
        print(format_json_line(report))


@app.command()
def encode(
    tokenizer: TokenizerPath,
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
    tokenizer: TokenizerPath,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="IDS", help="Ids as encode prints them; none: stdin.")
    ] = None,
    *,
    skip_special: Annotated[bool, typer.Option("--skip-special", help="Leave special tokens out.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the text of ids exactly; only a terminal gets a line end after it."""
    loaded = load_tokenizer(tokenizer)
    text = loaded.decode(_parse_ids(" ".join(ids) if ids else _read_stdin()), skip_special=skip_special)
    if as_json:
        print(format_json_line({"text": text}))
        return
    end = "\n" if sys.stdout.isatty() and not text.endswith("\n") else ""
    sys.stdout.flush()
    sys.stdout.buffer.write((escape_for_stream(text) + end).encode())
    sys.stdout.buffer.flush()


@app.command()
@with_settings(
    {"files": FilesConfig, "data": DataConfig},
    "text_column include exclude encoding format",
)
def inspect(
    tokenizer: TokenizerPath,
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT|FILE", help="Text to split, or - (stdin); a file is as with --file.")
    ] = None,
    *,
    file: Annotated[
        list[str] | None, typer.Option("--file", metavar="FILE", help="File to measure the tokenizer on. Repeatable.")
    ] = None,
    as_json: AsJson = False,
    options: Options,
) -> None:
    r"""Show what is in a tokenizer, how well it fits files, and how a text splits.

    In tokens · is a space, ⏎ a line end, ⇥ a tab, and \xed a byte of a character.

    Examples:
      lm tokenizer inspect runs/novel "Wo bist du?"
      lm tokenizer inspect tokenizer.json held-out.txt
    """
    from cli import tokenizer_report
    from cli.console.messages import print_notes
    from cli.console.progress import show_tokenization_progress
    from lm.text.find import find_text_files
    from lm.tokenizer import inspection

    if text is not None and is_file(text):
        file, text = [*(file or []), text], None
    loaded, data = load_tokenizer(tokenizer), options.build(DataConfig)
    ids = None if text is None else loaded.encode(_read_stdin() if text == "-" else text)
    files = find_text_files(file or [], data, options.build(FilesConfig))
    fit = None
    if files:
        with show_tokenization_progress() as progress:
            fit = inspection.measure_compression(loaded, files, progress=progress)
    print_notes(note for each in files for note in each.notes)
    longest = inspection.find_longest_tokens(loaded, _LONGEST)
    if as_json:
        print(format_json_line(tokenizer_report.tokenizer_to_dict(loaded, longest, fit, ids)))
        return
    tokenizer_report.print_summary(loaded, longest, fit)
    if ids is not None:
        print()
        tokenizer_report.print_tokens(loaded, ids)


def _parse_ids(text: str) -> list[int]:
    """Return the IDs in a text, separated by spaces or written as a list."""
    words = re.sub(r"[\[\],]", " ", text).split()
    try:
        return [*map(int, words)]
    except ValueError as error:
        raise InputError(f"token IDs are integers separated by spaces: {error}") from None


def _read_stdin() -> str:
    data = sys.stdin.buffer.read()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"stdin: not valid UTF-8 at byte offset {error.start} (0x{data[error.start]:02x})") from None
