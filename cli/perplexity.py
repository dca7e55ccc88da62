"""`lm perplexity`: how well a model predicts files of text, of examples or of pairs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments import AsJson, ToLanguage
from cli.loading import EnsemblePath, import_torch, resolve_hub_name, run_option
from cli.options import Options, with_settings
from lm.config.inference import PerplexityConfig
from lm.config.run_config import DataConfig, FilesConfig, HardwareConfig
from lm.errors import UsageError
from lm.files import check_writable

if TYPE_CHECKING:
    from lm.checkpoint import LoadedModel
    from lm.evaluation.scoring import ScoredTexts

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
    typer.Option("--dependency-heads", metavar="FILE", help="Dependency trees of the sources. Repeatable."),
]
_AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV: a row per file, token or word.")]
_PerToken = Annotated[bool, typer.Option("--per-token", help="Print JSON Lines: offset, token, text, nats, …")]
_PerWord = Annotated[bool, typer.Option("--per-word", help="Print JSON Lines: offset, text, bits, … of each word.")]
_Show = Annotated[bool, typer.Option("--show", help="Print the text coloured by surprisal.")]
_Html = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Write the coloured text as a web page."),
]
_Versus = Annotated[
    Path | None,
    run_option("--versus", "RUN2", "Difference in bits/byte to another run."),
]


@with_settings(
    {
        "perplexity": PerplexityConfig,
        "files": FilesConfig,
        "data": DataConfig,
        "hardware": HardwareConfig,
    },
    "context stride batch_size adapt text_column include exclude encoding format source_column target_column device "
    "dtype threads",
    common="--context --stride --versus --show --html --csv --per-word --json",
)
def perplexity(
    run: EnsemblePath,
    files: _Files = None,
    *,
    source: _Sources = None,
    target: _Targets = None,
    heads: _Heads = None,
    language: ToLanguage = None,
    as_json: AsJson = False,
    as_csv: _AsCsv = False,
    per_token: _PerToken = False,
    per_word: _PerWord = False,
    show: _Show = False,
    html: _Html = None,
    versus: _Versus = None,
    options: Options,
) -> None:
    """Measure perplexity on text, examples or translations.

    Every token is scored exactly once, given the preceding tokens in its window. Files are split into documents as in
    training, unless flags say otherwise, and each document is scored separately. Its first token is predicted from the
    document-start token; if the tokenizer has none, the first token is reported as unscored. Words are separated by
    whitespace. The total weights all tokens equally.

    Perplexity per token depends on the tokenizer, context and stride. Perplexity per word and bits/byte can be compared
    across tokenizers. Bytes are those of the text in UTF-8 after the run's normalisation, such as CRLF to LF.

    --adapt is dynamic evaluation: the model learns from each batch once it is scored, before the next. Compare its
    results only with others of the same rate and batch size.

    Without files, the held-out split of the run is scored. A warning is printed if a file contains training text of the
    run.

    --per-word prints the surprisal of each word in bits: the sum over its tokens and the white space before it; the
    last one includes the newline at the end of a file.

    --versus compares two runs segment by segment; segments end where both tokenizations have a token boundary. Its
    standard error treats blocks of 256 bytes as independent.

    A run trained on examples is scored on files of examples: each completion and its end, given the prompt; one longer
    than the context is skipped. --text-column reads them as plain text instead. A translation model is scored on
    --source and --target, or files with both: each target token and the end, given the source. Pairs with a blank side
    are skipped.

    For a masked model (lm train --objective masked) the result is the pseudo-perplexity: each token is masked in turn
    and predicted from both sides. This takes one pass of a window per token. In the overlap of two windows, each token
    is scored in the window that has more context for it.

    Examples:
      lm perplexity runs/novel
      lm perplexity runs/novel held-out.txt
      lm perplexity runs/novel tests/*.txt --stride 128 --json
      lm perplexity runs/novel sentences.txt --per-word --csv > surprisal.csv
      lm perplexity runs/novel chapter.txt --show
      lm perplexity runs/novel chapter.txt --show | less -R
      lm perplexity runs/novel chapter.txt --html chapter.html
      lm perplexity runs/novel held-out.txt --versus runs/other
      lm perplexity runs/answers questions.jsonl
      lm perplexity runs/en-de --source test.en --target test.de
      lm perplexity runs/en-de pairs.jsonl
    """
    if sum(map(bool, (versus, per_token, per_word, show, html))) > 1:
        raise UsageError("choose one of --versus, --per-token, --per-word, --show and --html")
    if as_csv + as_json + show > 1:
        raise UsageError("choose one of --csv, --json and --show")
    if html is not None:
        check_writable(html)
    import_torch()
    from cli import perplexity_report
    from lm.evaluation.perplexity import open_texts

    def find_texts(loaded: LoadedModel) -> ScoredTexts:
        reading, data = options.build(FilesConfig), options.values["data"]
        return open_texts(
            loaded, files or (), reading, data, language=language, source=source or (), target=target or (),
            heads=heads or (),
        )  # fmt: skip

    first = perplexity_report.Measurement(resolve_hub_name(run), options, find_texts)
    if versus is not None:
        second = perplexity_report.Measurement(resolve_hub_name(versus), options, lambda _: first.texts)
        perplexity_report.measure_versus(first, second, as_json=as_json, as_csv=as_csv)
    else:
        perplexity_report.measure(
            first, as_json=as_json, as_csv=as_csv, per_token=per_token, per_word=per_word, show=show, html=html
        )
