"""`lm prepare`: tokenize a corpus into token shards."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, get_args

import typer

from cli import completion
from cli.arguments import AsJson, CorpusFiles, SpecialTokens, UnknownToken
from cli.loading import load_tokenizer
from cli.options import Options, with_settings
from lm.config.data import DataConfig, FilesConfig
from lm.config.run_spec import refuse_settings
from lm.config.tokenizer import TokenizerConfig, TokenizerKind
from lm.errors import UsageError

_LARGE = "Large corpora"

TokenizerFile = Annotated[
    str | None,
    typer.Option(
        "--tokenizer",
        metavar="bpe|char|byte|FILE",
        help="Kind of tokenizer to train, or a tokenizer.json or run to take it of.",
        autocompletion=completion.complete_runs,
    ),
]
Out = Annotated[
    Path | None, typer.Option("-o", "--out", metavar="FOLDER", help="Folder of the tokens. [default: in the cache]")
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--processes",
        metavar="N",
        min=1,
        help="Tokenizing processes, 0.1 GB each. [default: one per core]",
    ),
]
PartOf = Annotated[
    str | None,
    typer.Option("--part", metavar="I/N", help="Make partition I of N, on one of N machines."),
]
Join = Annotated[bool, typer.Option("--join", help="Join partitions; CORPUS is their folders.")]


@with_settings(
    {"tokenizer": TokenizerConfig, "files": FilesConfig, "data": DataConfig},
    "vocab_size validation text_column label_column include exclude encoding format",
    common="--out --tokenizer --vocab-size --validation --text-column --label-column --processes --force --json",
)
def prepare(
    corpus: CorpusFiles,
    *,
    out: Out = None,
    tokenizer: TokenizerFile = None,
    special: SpecialTokens = None,
    unknown: UnknownToken = None,
    force: Annotated[bool, typer.Option("--force", help="Replace tokens in the folder.")] = False,
    processes: Processes = None,
    part: PartOf = None,
    join: Join = False,
    as_json: AsJson = False,
    options: Options,
) -> None:
    """Tokenize a corpus into shards (lm train does so automatically).

    The same command on the same text reuses the shards. With -o FOLDER, give that folder to lm train as its corpus;
    without, the shards go to the cache, where lm train finds them if it is given the same corpus and --tokenizer.

    A large corpus is tokenized in chunks, by several processes. If that is interrupted, the same command resumes where
    it was. Several machines can take a partition each (--part), to be joined by one of them (--join). The result does
    not depend on any of this.

    Examples:
      lm prepare corpus/ -o tokens
      lm prepare corpus/ --tokenizer tokenizer.json --part 1/2 -o part-1
      lm prepare --join part-1 part-2 -o tokens
    """
    if join:
        from cli.corpus_report import print_prepared
        from lm.corpus.prepare import join_parts

        partitions = [Path(partition) for partition in corpus]
        print_prepared(join_parts(partitions, folder=out, force=force), as_json=as_json)
        return
    if tokenizer in get_args(TokenizerKind):
        options, tokenizer = options.with_values("tokenizer", kind=tokenizer), None
    if tokenizer is not None:
        refuse_settings("tokenizer", options.typed("tokenizer"), beside="an existing tokenizer")
    number = None if part is None else _parse_part(part, out)
    from cli.console.messages import print_notes
    from cli.console.progress import show_tokenization_progress
    from cli.corpus_report import print_prepared, train_or_load_tokenizer
    from lm.corpus.prepare import prepare_corpus
    from lm.corpus.survey import scan_corpus
    from lm.text.find import find_text_files

    config = options.build(DataConfig)
    files = find_text_files(corpus, config, options.build(FilesConfig))
    loaded = None if tokenizer is None else load_tokenizer(Path(tokenizer))
    surveyed = scan_corpus(files, config, workers=processes)
    print_notes(surveyed.notes)
    tokenizer_config = options.build(TokenizerConfig)
    unknown = unknown if tokenizer_config.kind == "char" else None
    loaded = loaded or train_or_load_tokenizer(surveyed, tokenizer_config, special=special, unknown=unknown)
    if surveyed.kind == "conversations" and loaded.chat_template is None:
        loaded = loaded.with_chat_template()
    with show_tokenization_progress() as progress:
        prepared = prepare_corpus(
            surveyed, loaded, folder=out, force=force, workers=processes, part=number, progress=progress
        )
    print_prepared(prepared, as_json=as_json)


def _parse_part(part: str, out: Path | None) -> tuple[int, int]:
    """Parse `--part`; UsageError if invalid, or without an output folder."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", part, re.ASCII)
    number, count = (int(group) for group in match.groups()) if match else (0, 0)
    if not 1 <= number <= count:
        raise UsageError(f"a partition is I/N with I from 1 to N, such as 2/4, not {part!r} (--part)")
    if out is None:
        raise UsageError("a partition needs a folder of its own: name it with -o (--part)")
    return number, count
