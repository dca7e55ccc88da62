"""`lm prepare`: tokenize a corpus into a folder of token chunks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, get_args

import typer

from cli.arguments import AsJson, CorpusFiles
from cli.console.text import format_json_line, print_note, print_notes
from cli.loading import load_tokenizer, run_option
from cli.new_runs import warn_of_repetition
from cli.options import Options, with_settings
from lm.config.run_config import DataConfig, FilesConfig, TokenizerConfig, TokenizerKind
from lm.config.run_spec import refuse_settings
from lm.errors import UsageError


@with_settings(
    {"tokenizer": TokenizerConfig, "files": FilesConfig, "data": DataConfig},
    "vocab_size validation text_column label_column include exclude encoding format",
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
    from cli.console.progress import show_counter
    from cli.console.tables import print_table
    from lm.corpus.prepare import prepare_corpus
    from lm.corpus.survey import scan_corpus, train_tokenizers
    from lm.text.find import find_text_files

    if tokenizer in get_args(TokenizerKind):
        options.values["tokenizer"]["kind"], tokenizer = tokenizer, None
    if tokenizer is not None:
        refuse_settings("tokenizer", options.typed["tokenizer"], beside="an existing tokenizer")
    number = None if part is None else _parse_part(part, out)
    config = options.build(DataConfig)
    files = find_text_files(corpus, config, options.build(FilesConfig))
    loaded = None if tokenizer is None else load_tokenizer(Path(tokenizer))
    surveyed = scan_corpus(files, config, workers=processes)
    print_notes(surveyed.notes)
    loaded = loaded or train_tokenizers(surveyed, options.build(TokenizerConfig))[0]
    if surveyed.kind == "conversations" and loaded.chat_template is None:
        loaded = loaded.with_chat_template()
    with show_counter("tokenizing", "bytes") as progress:
        prepared = prepare_corpus(
            surveyed, loaded, folder=out, force=force, workers=processes, part=number, progress=progress
        )
    manifest = prepared.manifest
    splits = {
        name: {"documents": split.documents, "tokens": split.tokens, "bytes": split.bytes}
        for name, split in manifest.splits.items()
    }
    if as_json:
        report = {
            "folder": str(prepared.folder), "reused": prepared.reused,
            "vocab_size": loaded.vocab_size, "tokenizer": manifest.tokenizer, "chunks": len(manifest.chunks),
            "splits": splits, "copies": manifest.copies, "repeated": manifest.repeated,
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
