"""`lm prepare`: tokenize a corpus into a folder of chunks; `lm corpus`: list and download corpora."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, get_args

import typer

from cli.arguments import AsJson, CorpusFiles
from cli.console import escape_for_stream, format_json_line, print_note, print_notes, quote
from cli.loading import load_tokenizer, run_option, warn_of_repetition
from cli.options import Options, with_settings
from lm.config.run_config import DataConfig, FilesConfig, ParallelTextConfig, TokenizerConfig, TokenizerKind
from lm.config.run_spec import refuse_settings
from lm.config.settings import check_requirements
from lm.errors import UsageError


@with_settings(
    {"tokenizer": TokenizerConfig, "files": FilesConfig, "data": DataConfig, "parallel": ParallelTextConfig},
    "vocab_size validation text_column label_column source_column target_column include exclude encoding format",
    common="--out --tokenizer --vocab-size --validation --text-column --label-column --processes --force --json",
)
def prepare(
    corpus: CorpusFiles,
    *,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FOLDER", help="Folder of the tokens. [default: in the cache]")
    ] = None,
    tokenizer: Annotated[
        str | None,
        run_option("--tokenizer", "bpe|char|byte|FILE", "Kind to train, or a tokenizer.json or run to take it of."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace tokens in the folder.")] = False,
    processes: Annotated[
        int | None,
        typer.Option("--processes", metavar="N", min=1, help="Tokenizing processes, 0.1 GB each. [default: all cores]"),
    ] = None,
    part: Annotated[
        str | None, typer.Option("--part", metavar="I/N", help="Make part I of N of the chunks, on one of N machines.")
    ] = None,
    as_json: AsJson = False,
    options: Options,
) -> None:
    """Tokenize a corpus (lm train does so automatically).

    The same command on the same text reuses the tokens. With -o FOLDER, give that folder to lm train as its corpus;
    without, the tokens go to the cache, where lm train finds them if it is given the same corpus and --tokenizer.

    A large corpus is tokenized in chunks, by several processes. If that is interrupted, the same command resumes where
    it was. Several machines can make a part of the chunks each (--part), in one folder or in folders that are merged;
    the same command without --part completes them. The result does not depend on any of this.

    Examples:
      lm prepare corpus/ -o tokens
      lm prepare corpus/ --tokenizer tokenizer.json --part 1/2 -o tokens
    """
    from cli.console.figures import print_table, show_counter
    from lm.corpus.prepare import prepare_corpus
    from lm.corpus.survey import scan_corpus, train_tokenizers
    from lm.text.find import find_text_files

    if tokenizer in get_args(TokenizerKind):
        check_requirements({"tokenizer": TokenizerConfig}, options.typed, {"tokenizer.kind": tokenizer})
        options.values["tokenizer"]["kind"], tokenizer = tokenizer, None
    if tokenizer is not None:
        refuse_settings("tokenizer", options.typed["tokenizer"], beside="an existing tokenizer")
    number = None if part is None else _parse_part(part, out)
    config, parallel = options.build(DataConfig), options.build(ParallelTextConfig)
    files = find_text_files(corpus, config, options.build(FilesConfig))
    loaded, source = None if tokenizer is None else load_tokenizer(Path(tokenizer)), None
    surveyed = scan_corpus(files, config, parallel, workers=processes)
    print_notes(surveyed.notes)
    if loaded is None:
        loaded, source = train_tokenizers(surveyed, options.build(TokenizerConfig), parallel)
    if surveyed.kind == "conversations" and loaded.chat_template is None:
        loaded = loaded.with_chat_template()
    with show_counter("tokenizing", "bytes") as progress:
        prepared = prepare_corpus(
            surveyed, loaded, source_tokenizer=source, parallel=parallel, folder=out, force=force, workers=processes,
            part=number, progress=progress,
        )  # fmt: skip
    manifest = prepared.manifest
    splits = {
        name: {"documents": split.documents, "tokens": split.tokens, "bytes": split.bytes}
        for name, split in manifest.splits.items()
    }
    if as_json:
        report = {
            "folder": str(prepared.folder), "reused": prepared.reused,
            "vocab_size": loaded.vocab_size, "tokenizer": manifest.tokenizer, "chunks": len(manifest.chunks),
            "splits": splits, "repeated": manifest.repeated,
        }  # fmt: skip
        print(format_json_line(report))
    else:
        rows = [(name, *counts.values()) for name, counts in splits.items()]
        print_table(("split", "documents", "tokens", "bytes"), rows)
    print_note(f"{'reused' if prepared.reused else 'wrote'} {prepared.folder}{' in part' if number else ''}")
    warn_of_repetition(manifest)


def _parse_part(part: str, out: Path | None) -> tuple[int, int]:
    """Parse `--part`; UsageError if invalid, or without an output folder."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", part, re.ASCII)
    number, count = map(int, match.groups()) if match else (0, 0)
    if not 1 <= number <= count or out is None:
        raise UsageError(f"a part is I/N with I from 1 to N, in a folder (-o), not {part!r} (--part)")
    return number, count


app = typer.Typer(help="List and download corpora.", rich_markup_mode=None)


@app.command("list")
def list_corpora(*, as_json: AsJson = False) -> None:
    """List the bundled corpora, and public ones to download."""
    from cli.console import format_bytes
    from cli.console.figures import print_table
    from lm.text.public import CORPORA

    if as_json:
        print(format_json_line([corpus._asdict() for corpus in CORPORA]))
        return
    rows = [(one.name, format_bytes(one.size), one.licence, one.description) for one in CORPORA]
    print_table(("name", "download", "licence", "description"), rows)


@app.command()
def get(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="A name of lm corpus list."),
    ],
    *,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FOLDER", help="Folder of the files. [default: data/NAME]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Download a corpus, and print how to train on it.

    Files with a published SHA-256 are verified.

    Examples:
      lm corpus get tinyshakespeare
      lm corpus get tinystories -o /data/stories
    """
    from cli.console.figures import show_counter
    from lm.text import public

    corpus = public.find_corpus(name)
    folder, paths = out or Path("data") / corpus.name, []
    for url, checksum in corpus.files.items():
        with show_counter(url.rpartition("/")[2], "bytes") as progress:
            paths.append(str(public.fetch(url, folder, checksum=checksum, progress=progress)))
    command = f"lm train {corpus.train}".format(folder=quote(folder))
    print_note(f"licence: {corpus.licence}\ntrain on it: {command}")
    if as_json:
        report = {"name": corpus.name, "folder": str(folder), "files": paths, "train": command}
        print(format_json_line(report))
    else:
        print("\n".join(escape_for_stream(path) for path in paths))
