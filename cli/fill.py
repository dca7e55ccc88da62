"""`lm fill`: predict the blanks of a text."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments import read_input_lines
from cli.loading import RunPath, load_masked
from cli.options import Options, with_settings
from lm.config.decoding import FillConfig
from lm.config.hardware import HardwareConfig
from lm.errors import UsageError

if TYPE_CHECKING:
    from lm.decoding.mask_filling import FilledText

_Text = Annotated[
    str | None,
    typer.Argument(metavar="TEXT", help="Text with [MASK] for each blank; - or none: stdin, one text per line."),
]
_Files = Annotated[
    list[Path] | None, typer.Option("--file", metavar="FILE", help="File of texts, one per line. Repeatable.")
]
_AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON Lines: text, filled, blanks (id, text, probability).")
]


@with_settings(
    {"fill": FillConfig, "hardware": HardwareConfig},
    "top_k batch_size device dtype threads",
)
def fill(run: RunPath, text: _Text = None, *, file: _Files = None, as_json: _AsJson = False, options: Options) -> None:
    """Predict the masked tokens of a text.

    The run must be a masked model (lm train --objective masked). Each [MASK] stands for one token, which in most
    vocabularies begins with the preceding space (shown as ·). Several masked tokens are predicted independently, with
    all of them masked.

    Examples:
      lm fill runs/masked "A [MASK] of tea"
      lm fill runs/masked "The [MASK] said that the [MASK] was late." --top-k 3
      lm fill runs/masked --file blanks.txt --json | jq .filled
    """
    config = options.build(FillConfig)
    texts = _read_texts(text, file)
    from lm.decoding.mask_filling import MaskFiller

    model, loaded = load_masked(run, options.build(HardwareConfig))
    filled = MaskFiller(model, loaded.tokenizer, config.batch_size).fill(texts, k=config.top_k)
    if as_json:
        _print_json(filled)
    else:
        _print_table(list(filled), is_one=text not in (None, "-"))


def _read_texts(text: str | None, files: Sequence[Path] | None) -> Iterable[str]:
    """Return the text of the command line, or the lines of files or a pipe."""
    if text not in (None, "-"):
        if files:
            raise UsageError("give either a text or --file")
        return [str(text)]
    if text is None and not files and sys.stdin.isatty():
        raise UsageError("there is no text: give one with [MASK] for each blank, or - to read texts from stdin")
    return read_input_lines(files or [])


def _print_json(filled: Iterator[FilledText]) -> None:
    import dataclasses

    from cli.console.text import format_json_line

    for text in filled:
        print(format_json_line(dataclasses.asdict(text)), flush=True)


def _print_table(filled: Sequence[FilledText], *, is_one: bool) -> None:
    """Print the candidates for each blank; for a single text also the filled text."""
    from cli.console.tables import print_table
    from cli.console.text import format_label, print_paragraph

    rows = [
        (str(line), str(blank), format_label(guess.text.replace(" ", "·")), f"{guess.probability:.1%}")
        for line, text in enumerate(filled, 1)
        for blank, guesses in enumerate(text.blanks, 1)
        for guess in guesses
    ]
    if not rows:
        raise UsageError("there is no blank to fill: write [MASK] for each")
    columns = ("line", "blank", "guess", "probability")
    print_table(columns[is_one:], [row[is_one:] for row in rows])
    if is_one:
        print_paragraph(filled[0].filled)
