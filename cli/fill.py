"""`lm fill`: predict the blanks of a text."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from cli.arguments import read_input_lines
from cli.loading import RunPath, load_masked
from cli.options import Options, with_settings
from lm.config.inference import FillConfig
from lm.config.run_config import HardwareConfig

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
def fill(run: RunPath, text: _Text = None, *, as_json: _AsJson = False, options: Options) -> None:
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
    from cli.console.tables import print_table
    from cli.console.text import format_json_line, format_label, print_paragraph
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
            print_paragraph(filled.filled)
