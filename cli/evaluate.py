"""`lm evaluate`: metrics of a classifier, or of translations of a run or in a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from cli import completion
from cli.arguments import SentencePairs
from cli.console.messages import print_notes, quote
from cli.loading import Labels, load_classifier
from cli.options import Options, with_settings
from lm.config.data import DataConfig, FilesConfig, ParallelTextConfig
from lm.config.decoding import ClassificationConfig, TranslationConfig
from lm.config.evaluation import ScoringConfig
from lm.config.hardware import HardwareConfig
from lm.config.run_config import RunConfig
from lm.errors import UsageError
from lm.files import check_writable
from lm.run_folder import find_checkpoint, load_config
from lm.text.find import STDIN, find_text_files, has_piped_text, refuse_stdin_twice

_Run = Annotated[
    Path | None,
    typer.Argument(
        metavar="[RUN]",
        help="A classifier for FILE, or a run that translates --source.",
        autocompletion=completion.complete_runs,
    ),
]
_Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE]...", help="Labelled examples: JSON, CSV, TSV, Parquet; - for stdin. [default: held-out split]"
    ),
]
_Source = Annotated[
    str | None, typer.Option("--source", metavar="FILE", help="Text that RUN translates, line by line.")
]
_Heads = Annotated[
    Path | None, typer.Option("--dependency-heads", metavar="FILE", help="Dependency trees of --source.")
]
_Target = Annotated[
    list[str] | None, typer.Option("--target", metavar="FILE", help="Reference translations. Repeatable.")
]
_Hypotheses = Annotated[
    str | None, typer.Option("--hypotheses", metavar="FILE", help="Translations to score, instead of a run's.")
]
_Versus = Annotated[
    Path | None,
    typer.Option(
        "--versus",
        metavar="RUN2|FILE",
        help="Compare with another run or translations.",
        autocompletion=completion.complete_runs,
    ),
]
_Out = Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="File of the translations.")]
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON: scores, intervals, signatures, …")]
_Language = Annotated[
    str | None, typer.Option("--to", metavar="LANGUAGE", help="Target language. [default: de of test.de]")
]


@with_settings(
    {
        "scoring": ScoringConfig,
        "translation": TranslationConfig,
        "classification": ClassificationConfig,
        "files": FilesConfig,
        "data": DataConfig,
        "parallel": ParallelTextConfig,
        "hardware": HardwareConfig,
    },
    "tokenize lowercase resamples beam length_penalty coverage_penalty batch_size text_column label_column header "
    "source_column target_column format include exclude encoding device dtype threads",
    common="--source --target --pairs --hypotheses --versus --beam --text-column --label-column --out --json",
)
def evaluate(
    run: _Run = None,
    files: _Files = None,
    *,
    labels: Labels = None,
    target: _Target = None,
    source: _Source = None,
    pairs: SentencePairs = None,
    heads: _Heads = None,
    hypotheses: _Hypotheses = None,
    versus: _Versus = None,
    language: _Language = None,
    out: _Out = None,
    as_json: _AsJson = False,
    options: Options,
) -> None:
    """Evaluate a classifier, or translations (BLEU, chrF, TER).

    For a classifier: accuracy on FILE, or on the held-out examples of the run, with a 95% interval (Wilson); the
    accuracy of always predicting the most frequent label; macro F1; precision, recall and F1 of each label; the
    confusion matrix. Labels unknown to the model count as wrong. A warning is printed if FILE contains training
    examples of the run.

    For a translation model: --source is translated, and scored against --target by BLEU, chrF and TER. --pairs reads
    both from one file. Without files, the held-out pairs of the run are used. --hypotheses scores existing
    translations. Line n of each file belongs to line n of the others. Each score is printed with its sacreBLEU
    signature, which names everything that it depends on, and with a 95% bootstrap interval.

    Higher is better for BLEU and chrF, lower for TER. Compare scores only if their signatures are equal. For papers
    that report BLEU of tokenized, lowercased text, score tokenized text with --tokenize none --lowercase.

    --versus compares with the translations of another run, or with a file of translations, by paired bootstrap
    resampling; p is the probability of such a difference by chance alone.

    Examples:
      lm evaluate runs/topics
      lm evaluate runs/topics test.csv
      lm evaluate runs/topics test.csv --json | jq .macro_f1
      lm evaluate runs/spam sms.tsv --no-header --text-column 2 --label-column 1
      lm evaluate runs/en-de
      lm evaluate runs/en-de --source test.en --target test.de
      lm evaluate runs/en-de --pairs test.tsv
      lm evaluate runs/en-de --source test.en --target test.de -o test.out --json
      lm evaluate runs/en-de --source test.en --target test.de --versus runs/other
      lm evaluate --hypotheses test.out --target test.de
      lm evaluate --hypotheses test.tok --target reference.tok --tokenize none --lowercase
    """
    is_held_out = run is not None and not files and not (source or pairs or hypotheses or target or heads)
    if run is not None:
        run_config = load_config(find_checkpoint(run))
        if files and run_config.model.translates:
            instead = f"lm evaluate {quote(run)} --source FILE --target FILE (or --pairs FILE) scores its translations"
            raise UsageError(f"{run}: this run translates, so it has no labels to score: {instead}")
        classifies = run_config.is_classifier or (labels is not None and run_config.learns_completions)
        if files or (is_held_out and classifies):
            if is_held_out and has_piped_text():
                files, is_held_out = [STDIN], False
            refuse_stdin_twice([*(files or ()), labels or ""])
            _evaluate_classifier(run, files or (), labels, as_json=as_json, options=options)
            return
        _refuse_other_kinds(run, run_config)
    if not is_held_out:
        _check_texts(run, hypotheses, out, source=source, target=target, pairs=pairs)
    elif versus is not None and not versus.is_dir():
        raise UsageError(f"{versus}: translations are compared on files: give --source and --target (--versus)")
    if heads is not None and source is None and not pairs:
        raise UsageError("--dependency-heads needs --source or --pairs: give that too")
    targets, paths = target or (), [str(path) for path in (heads, versus) if path is not None]
    refuse_stdin_twice([source or "", hypotheses or "", *targets, *(pairs or ()), *paths])
    from cli.translation import evaluation

    if run is not None and is_held_out:
        texts = evaluation.open_held_out_texts(run)
    elif pairs:
        texts = evaluation.read_pairs(pairs, heads, run=run, options=options)
    else:
        texts = evaluation.read_texts(source, targets, heads)
    runs = [path for path in (run, versus) if path is not None]
    evaluation.check_runs(runs, has_dependency_heads=texts.heads is not None)
    config = options.build(ScoringConfig)
    translator = evaluation.RunTranslator(options, language, texts)
    lines = translator.translate(run) if run is not None else evaluation.read_system(str(hypotheses), targets, texts)
    first = evaluation.SystemOutput(str(run or hypotheses), lines)
    if out is not None:
        evaluation.write_system(out, first)
    evaluation.warn_of_tokenized_text(first, config)
    if versus is None:
        evaluation.report_scores(first, texts.references, config, as_json=as_json)
        return
    lines = translator.translate(versus) if versus.is_dir() else evaluation.read_system(str(versus), targets, texts)
    second = evaluation.SystemOutput(str(versus), lines)
    evaluation.report_comparison(first, second, texts.references, config, as_json=as_json)


def _evaluate_classifier(
    run: Path, files: Sequence[str], labels: str | None, *, as_json: bool, options: Options
) -> None:
    """Score a run on labelled examples; without files, on those that it held out."""
    config = options.build(ClassificationConfig)
    classifier, loaded = load_classifier(
        run, options.build(HardwareConfig), labels=labels, batch_size=config.batch_size
    )
    from cli import classification_report
    from cli.console.progress import show_counter
    from lm.evaluation.classification import evaluate_classifier
    from lm.evaluation.held_out import open_held_out_text

    data = loaded.config.data.for_other_files(**options.values["data"])
    reading = options.build(FilesConfig)
    corpus = find_text_files(files, data, reading) if files else [open_held_out_text(loaded)]
    with show_counter("classifying", "examples") as count:
        examples = (record for file in corpus for record in file.records())
        scores = evaluate_classifier(classifier, examples, progress=count)
    print_notes(note for file in corpus for note in file.notes)
    classification_report.warn_of_training_examples(loaded, corpus)
    if as_json:
        classification_report.print_json(scores, run=str(run))
    else:
        classification_report.print_report(scores, run=str(run), is_held_out=not files)
    classification_report.warn(scores)


def _refuse_other_kinds(run: Path, config: RunConfig) -> None:
    """Raise UsageError for a run that neither translates nor is given labelled examples, with the right command."""
    model = config.model
    if config.is_classifier:
        raise UsageError(
            f"{run}: this run classifies texts: name labelled examples, as in lm evaluate {quote(run)} FILE"
        )
    if not model.translates:
        instead = f"lm perplexity {quote(run)} FILE tells how well it predicts text"
        raise UsageError(f"{run}: this run {model.purpose}, and neither translates nor classifies: {instead}")


def _check_texts(
    run: Path | None,
    hypotheses: str | None,
    out: Path | None,
    *,
    source: str | None,
    target: list[str] | None,
    pairs: list[str] | None,
) -> None:
    """Raise UsageError unless there are a run and its source, or finished translations; and references, in one way."""
    if (run is None) == (hypotheses is None):
        raise UsageError(
            "what is to be scored? Give a classifier and a file of labelled examples, a run that translates with "
            "--source or --pairs, or translations with --hypotheses"
        )
    if run is not None and not (source or pairs):
        raise UsageError("a run needs something to translate: give --source, or --pairs")
    if hypotheses is not None and out is not None:
        raise UsageError("--out writes the translations of a run; these exist already (--hypotheses)")
    if out is not None:
        check_writable(out)
    if not target and not pairs:
        raise UsageError("what are the translations compared with? Give reference translations (--target, or --pairs)")
    if pairs and (target or source is not None):
        raise UsageError("pairs have source and target in one file: leave out --source and --target, or --pairs")
