"""`lm fill`: predict the blanks of a text; `lm classify`: labels of texts with their probabilities."""

from __future__ import annotations

import dataclasses
from itertools import islice
from typing import Annotated

import typer

from cli.arguments import read_input_lines
from cli.console import escape_for_stream, format_json_line
from cli.loading import EnsemblePath, Labels, load_classifier, load_masked
from cli.options import Options, with_settings
from lm.config.inference import ClassificationConfig, FillConfig
from lm.config.run_config import DataConfig, FilesConfig, HardwareConfig
from lm.errors import InputError
from lm.text.decode import split_lines
from lm.text.find import STDIN, find_text_files

_Text = Annotated[
    str | None,
    typer.Argument(metavar="TEXT", help="Text with [MASK] for each blank; without one: stdin, one text per line."),
]
_AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON Lines: text, filled, blanks (id, text, probability).")
]


@with_settings(
    {"fill": FillConfig, "hardware": HardwareConfig},
    "top_k batch_size device dtype threads",
)
def fill(run: EnsemblePath, text: _Text = None, *, as_json: _AsJson = False, options: Options) -> None:
    """Predict the masked tokens of a text.

    The run must be a masked model (lm train --objective masked). Each [MASK] stands for one token, which in most
    vocabularies begins with the preceding space (shown as ·). Several masked tokens are predicted independently, with
    all of them masked.

    Examples:
      lm fill runs/masked "A [MASK] of tea"
      lm fill runs/masked "The [MASK] said that the [MASK] was late." --top-k 3
      lm fill runs/masked --json < blanks.txt | jq .filled
    """
    config = options.build(FillConfig)
    model, loaded = load_masked(run, options.build(HardwareConfig))
    from cli.console import format_label
    from cli.console.figures import print_table
    from lm.decoding.classifier import fill_masks

    rows, texts = [], read_input_lines([]) if text is None else [text]
    found = fill_masks(model, loaded.tokenizer, texts, k=config.top_k, batch_size=config.batch_size)
    for line, filled in enumerate(found, 1):
        if as_json:
            print(format_json_line(dataclasses.asdict(filled)), flush=True)
        rows += [
            (line, blank, format_label(guess.text.replace(" ", "·")), f"{guess.probability:.1%}")
            for blank, guesses in enumerate(filled.blanks, 1)
            for guess in guesses
        ]
    if not as_json:
        print_table(("line", "blank", "guess", "probability"), rows)
        if text is not None:
            print(escape_for_stream(filled.filled))


_Files = Annotated[
    list[str] | None,
    typer.Argument(metavar="FILE…", help="Texts, one per line, or JSON, CSV, TSV, Parquet; - or none: stdin."),
]
_LabelsAsJson = Annotated[bool, typer.Option("--json", help="Print JSON Lines: text, label, probabilities.")]


@with_settings(
    {"classification": ClassificationConfig, "files": FilesConfig, "data": DataConfig, "hardware": HardwareConfig},
    "top_k batch_size text_column header format include exclude encoding device dtype threads",
    common="--top-k --text-column --header --labels --batch-size --json",
)
def classify(
    run: EnsemblePath, files: _Files = None, *, labels: Labels = None, as_json: _LabelsAsJson = False, options: Options
) -> None:
    """Classify texts.

    Each output line is a label, a tab and its probability, in input order. The run must be trained by lm train
    --label-column on labelled texts. A masked model has a classification head; a decoder ranks the labels, or few and
    short completions, by their probability after the text. lm evaluate compares the labels with those of the files.

    Examples:
      lm classify runs/topics reviews.txt > labels.tsv
      lm classify runs/topics reviews.txt --top-k 3
      lm classify runs/topics held-out.jsonl --json | jq .probabilities
      lm classify runs/spam sms.tsv --no-header --text-column 2
      echo "What a lovely day." | lm classify runs/topics | cut -f 1
    """
    config = options.build(ClassificationConfig)
    hardware = options.build(HardwareConfig)
    classifier, loaded = load_classifier(run, hardware, labels=labels, batch_size=config.batch_size)
    data, texts = loaded.config.data.for_other_files(**options.values["data"]), list[str]()
    for file in find_text_files(files or [STDIN], data.replace(label_column=None), options.build(FilesConfig)):
        if file.kind not in ("text", "examples"):
            raise InputError(f"{file.name}: holds {file.kind}, not texts")
        texts += [record.parts[0].text for record in file.row_records()] if file.has_rows else split_lines(file.text())
    for found in classifier.classify(texts):
        best = dict(islice(found.probabilities.items(), config.top_k if as_json else config.top_k or 1))
        if as_json:
            print(format_json_line({"text": found.text, "label": found.label, "probabilities": best}))
        else:
            print("\t".join(f"{escape_for_stream(label)}\t{probability:.4f}" for label, probability in best.items()))
