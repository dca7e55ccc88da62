"""`lm evaluate`: metrics that fit a run, or those of a file of translations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.arguments import AsJson, ToLanguage
from cli.loading import Labels, import_torch, run_argument, run_option
from cli.options import Options, with_settings
from lm.config.inference import ClassificationConfig, PerplexityConfig, ScoringConfig, TranslationConfig
from lm.config.run_config import DataConfig, FilesConfig, HardwareConfig
from lm.errors import UsageError
from lm.run_folder import find_first, load_config

_Run = Annotated[
    Path | None,
    run_argument("[RUN]", "A run. [default: --hypotheses]"),
]
_Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE]...", help="Labelled examples, pairs or text; - for stdin. [default: held-out split]"
    ),
]
_Source = Annotated[
    str | None, typer.Option("--source", metavar="FILE", help="Text that RUN translates, line by line.")
]
_Heads = Annotated[str | None, typer.Option("--dependency-heads", metavar="FILE", help="Dependency trees of --source.")]
_Target = Annotated[
    list[str] | None, typer.Option("--target", metavar="FILE", help="Reference translations. Repeatable.")
]
_Hypotheses = Annotated[
    str | None, typer.Option("--hypotheses", metavar="FILE", help="Translations to score, instead of a run's.")
]
_Versus = Annotated[
    Path | None,
    run_option("--versus", "RUN2|FILE", "Compare with another run or translations."),
]


@with_settings(
    {
        "scoring": ScoringConfig,
        "translation": TranslationConfig,
        "classification": ClassificationConfig,
        "files": FilesConfig,
        "data": DataConfig,
        "perplexity": PerplexityConfig,
        "hardware": HardwareConfig,
    },
    "tokenize lowercase resamples beam length_penalty batch_size text_column label_column header "
    "source_column target_column format include exclude encoding device dtype threads",
    common="--source --target --hypotheses --versus --beam --text-column --label-column --json",
)
def evaluate(
    run: _Run = None,
    files: _Files = None,
    *,
    labels: Labels = None,
    target: _Target = None,
    source: _Source = None,
    heads: _Heads = None,
    hypotheses: _Hypotheses = None,
    versus: _Versus = None,
    language: ToLanguage = None,
    as_json: AsJson = False,
    options: Options,
) -> None:
    """Evaluate a run by the metrics that fit it: accuracy, BLEU, or perplexity.

    A run that predicts text is scored as by lm perplexity, which has more options.

    For a classifier: accuracy on FILE, or on the held-out examples of the run, with a 95% interval (Wilson); the
    accuracy of always predicting the most frequent label; macro F1; precision, recall and F1 of each label; with
    --json the confusion matrix too. Labels unknown to the model count as wrong. A warning is printed if FILE contains
    training examples of the run.

    For a translation model: --source is translated, and scored against --target by BLEU, chrF and TER; or FILE has
    both, in its columns source and target. Without files, the held-out pairs of the run are used. --hypotheses scores
    existing translations. Line n of each file belongs to line n of the others. Each score is printed with its sacreBLEU
    signature, which names everything that it depends on, and with a 95% bootstrap interval.

    Higher is better for BLEU and chrF, lower for TER. Compare scores only if their signatures are equal. For papers
    that report BLEU of tokenized, lowercased text, score tokenized text with --tokenize none --lowercase.

    --versus compares with the translations of another run, or with a file of translations, by paired bootstrap
    resampling; p is the probability of such a difference by chance alone.

    Examples:
      lm evaluate runs/topics
      lm evaluate runs/novel held-out.txt
      lm evaluate runs/topics test.csv
      lm evaluate runs/topics test.csv --json | jq .macro_f1
      lm evaluate runs/spam sms.tsv --no-header --text-column 2 --label-column 1
      lm evaluate runs/en-de
      lm evaluate runs/en-de --source test.en --target test.de
      lm evaluate runs/en-de test.csv --source-column english --target-column german
      lm evaluate runs/en-de --source test.en --target test.de --versus runs/other
      lm evaluate --hypotheses test.out --target test.de
      lm evaluate --hypotheses test.out test.jsonl
      lm evaluate --hypotheses test.tok --target reference.tok --tokenize none --lowercase
    """
    if hypotheses is not None and run is not None:
        run, files = None, [str(run), *(files or ())]
    if run is not None and not (source or target or (config := load_config(find_first(run))).model.translates):
        if versus:
            raise UsageError("--versus compares translations; of texts lm perplexity has it")
        import_torch()
        if config.is_classifier or (labels is not None and config.is_supervised and not config.model.is_masked):
            from cli.evaluation_report import evaluate_labels

            return evaluate_labels(run, files or (), labels, as_json=as_json, options=options)
        from cli import perplexity_report
        from lm.evaluation.perplexity import open_texts

        reading, data = options.build(FilesConfig), options.values["data"]
        measured = perplexity_report.Measurement(
            run, options, lambda loaded: open_texts(loaded, files or (), reading, data)
        )
        return perplexity_report.measure(measured, as_json=as_json)
    if run is None and hypotheses is None:
        raise UsageError("give a run, or translations (--hypotheses)")
    from cli.evaluation_report import evaluate_translations, find_texts

    texts = find_texts(run, files or (), source=source, targets=target or (), heads=heads, options=options)
    systems = [each for each in (run or Path(str(hypotheses)), versus) if each]
    return evaluate_translations(systems, texts, language, as_json=as_json, options=options)
