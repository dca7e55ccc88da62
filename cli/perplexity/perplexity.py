"""`lm perplexity`: how well a model predicts files of text, of examples or of pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli import completion
from cli.arguments import SentencePairs
from cli.loading import RunPath, import_torch
from cli.new_runs import resolve_hub_name
from cli.options import Options, with_settings
from cli.perplexity.report_options import PairFiles, ReportFormat
from lm.config.data import DataConfig, FilesConfig, ParallelTextConfig
from lm.config.evaluation import PerplexityConfig
from lm.config.hardware import HardwareConfig, WorkersConfig
from lm.errors import UsageError
from lm.run_folder import find_checkpoint, load_config
from lm.text.find import STDIN, has_piped_text

_OUTPUT, _TRANSLATIONS = "Output", "Translation"

_Files = Annotated[
    list[str] | None,
    typer.Argument(metavar="FILE…", help="Text files, folders, globs, or - (stdin). [default: held-out split]"),
]
_Sources = Annotated[
    list[str] | None,
    typer.Option("--source", metavar="FILE", help="Sources, for a translation model. Repeatable."),
]
_Targets = Annotated[
    list[str] | None,
    typer.Option("--target", metavar="FILE", help="Their translations, to score. Repeatable."),
]
_Heads = Annotated[
    list[str] | None,
    typer.Option(
        "--dependency-heads",
        metavar="FILE",
        help="Dependency trees of the sources. Repeatable.",
    ),
]
_Language = Annotated[
    str | None,
    typer.Option("--to", metavar="LANGUAGE", help="Target language. [default: de of test.de]"),
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON: files, total, macro, settings.")]
_AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV: a row per file, and the total.")]
_PerToken = Annotated[bool, typer.Option("--per-token", help="Print JSON Lines: offset, token, text, nats, …")]
_Show = Annotated[bool, typer.Option("--show", help="Print the text coloured by surprisal.")]
_Html = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Write the coloured text as a web page."),
]
_Versus = Annotated[
    Path | None,
    typer.Option(
        "--versus",
        metavar="RUN2",
        autocompletion=completion.complete_runs,
        help="Difference in bits/byte to another run.",
    ),
]
_CompareDtypes = Annotated[bool, typer.Option("--compare-dtypes", help="Compare dtypes: bits/byte, memory, speed.")]


@with_settings(
    {
        "perplexity": PerplexityConfig,
        "files": FilesConfig,
        "data": DataConfig,
        "parallel": ParallelTextConfig,
        "hardware": HardwareConfig,
        "workers": WorkersConfig,
    },
    "context stride batch_size score_every text_column include exclude encoding format source_column target_column "
    "processes device dtype threads",
    common="--context --stride --versus --show --html --csv --per-token --json",
)
def perplexity(
    run: RunPath,
    files: _Files = None,
    *,
    source: _Sources = None,
    target: _Targets = None,
    pairs: SentencePairs = None,
    heads: _Heads = None,
    language: _Language = None,
    as_json: _AsJson = False,
    as_csv: _AsCsv = False,
    per_token: _PerToken = False,
    show: _Show = False,
    html: _Html = None,
    versus: _Versus = None,
    compare_dtypes: _CompareDtypes = False,
    options: Options,
) -> None:
    """Measure perplexity on text, examples or translations.

    Every token is scored exactly once, given the preceding tokens in its window. Files are split into documents as in
    training, unless flags say otherwise, and each document is scored separately. Its first token is predicted from the
    document-start token; if the tokenizer has none, the first token is reported as unscored. Words are separated by
    whitespace. The standard error is that of the mean nats per token, treating tokens as independent. The total weights
    all tokens equally; the mean over files weights all files equally, and its standard error is between files.

    Perplexity per token depends on the tokenizer, context and stride. Perplexity per word and bits/byte can be compared
    across tokenizers. Bytes are those of the text in UTF-8 after the run's normalisation, such as CRLF to LF.

    Without files, the held-out split of the run is scored. A warning is printed if a file contains training text of the
    run.

    --versus compares two runs segment by segment; segments end where both tokenizations have a token boundary. Its
    standard error treats blocks of 256 bytes as independent. --compare-dtypes scores the text in each dtype, with
    interleaved batches, and reports the differences to float32 in bits/byte.

    A run trained on examples is scored on files of examples: each completion
    and its end, given the prompt. --text-column reads them as plain text instead. A translation model is scored on
    --source and --target, or --pairs: each target token and the end, given the source. Pairs with a blank side are
    skipped.

    For a masked model (lm train --objective masked) the result is the pseudo-perplexity: each token is masked in turn
    and predicted from both sides. This takes one pass of a window per token; --score-every N scores only every Nth
    token. In the overlap of two windows, each token is scored in the window that has more context for it.

    Examples:
      lm perplexity runs/novel
      lm perplexity runs/novel held-out.txt
      lm perplexity runs/novel tests/*.txt --stride 128 --json
      lm perplexity runs/novel chapter.txt --show
      FORCE_COLOR=1 lm perplexity runs/novel chapter.txt --show | less -R
      lm perplexity runs/novel chapter.txt --html chapter.html
      lm perplexity runs/novel held-out.txt --versus runs/other
      lm perplexity runs/novel held-out.txt --compare-dtypes
      lm perplexity runs/answers questions.jsonl
      lm perplexity runs/en-de --source test.en --target test.de
      lm perplexity runs/en-de --pairs test.tsv
    """
    run, versus = resolve_hub_name(run), None if versus is None else resolve_hub_name(versus)
    output = ReportFormat(as_json, as_csv, per_token, show, html, versus, compare_dtypes)
    pair_files = PairFiles(source or (), target or (), language, heads or (), pairs or ())
    if pair_files and files:
        raise UsageError(f"{files[0]}: give files of text, or pairs (--source and --target, or --pairs), not both")
    if not pair_files and not files and has_piped_text():
        files = [STDIN]
    if pair_files or (not files and load_config(find_checkpoint(run)).model.translates):
        output.refuse_reports_of_text("sentence pairs", options.typed("perplexity"))
        import_torch()
        from cli.perplexity.pairs import measure_pairs

        hardware, workers = options.build(HardwareConfig), options.build(WorkersConfig)
        measure_pairs(
            run,
            pair_files,
            options.build(FilesConfig),
            hardware,
            columns=options.values["parallel"],
            processes=workers.processes,
            as_json=as_json,
        )
    else:
        import_torch()
        from cli.perplexity.files import measure_files

        measure_files(run, files or (), output, options)
