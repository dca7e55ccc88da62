"""`lm attention`: where a model looks in a text, or in the source of a translation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.flags.arguments import text_argument
from cli.flags.loading import RunPath
from cli.flags.options import Given, takes
from lm.config.evaluation import AttentionConfig
from lm.config.hardware import HardwareConfig
from lm.config.options import check_text
from lm.errors import UsageError

if TYPE_CHECKING:
    from cli.attention.maps import Looked

_Text = Annotated[
    str | None,
    typer.Argument(
        metavar="TEXT",
        help="What the model reads; - or nothing reads it from a pipe, less one line end.",
        show_default=False,
    ),
]
_Target = Annotated[
    str | None,
    typer.Option("--target", metavar="TEXT", help="A translation of the text: show where its words look in the text."),
]
_To = Annotated[
    str | None,
    typer.Option(
        "--to", metavar="LANGUAGE", help="The target language, of a run that has several.", show_default=False
    ),
]
_Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        metavar="FILE",
        help="Write a file instead: .html (all layers and heads), .png or .svg (pictures need matplotlib), .txt, "
        ".json or .jsonl, or .pharaoh (alignments alone).",
    ),
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON: the weights of all layers and heads.")]


@takes({"attention": AttentionConfig, "hardware": HardwareConfig})
def attention(
    run: RunPath,
    text: _Text = None,
    *,
    target: _Target = None,
    to: _To = None,
    out: _Out = None,
    as_json: _AsJson = False,
    given: Given,
) -> None:
    """Show where a model looks: attention weights as a heat map on the words.

    A row is a word that looks, a column a word it looks at; the tokens of a word weigh as much as they do together,
    and look as they do on average, so a row sums to 100%. A GPT looks at itself and what comes before, the start of
    the text (<s>) included. Of an encoder-decoder, --target shows how a translation looks at the text: each of its
    words while it is being predicted, down to its end (</s>); without it, how the encoder looks at the text.

    Attention says what information flows where, not why a model decides as it does.

    Examples:
      lm attention runs/novel "It was the best of times"
      lm attention runs/novel "It was the best of times" --layer 2 --head 1 --unit tokens
      lm attention runs/novel "It was the best of times" -o attention.html
      lm attention runs/en-de "A dog runs." --target "Ein Hund rennt." -o alignments.pharaoh
    """
    config = AttentionConfig(**given["attention"])
    if out is not None and as_json:
        raise UsageError("--json and --out exclude each other; a file named .json gets the same")
    from cli.attention import figures, files, maps

    if out is not None:
        files.check(out)
    if target is not None:
        check_text(target, name="target", flag="--target")
    read = text_argument(text) or ""
    if not read.strip():
        raise UsageError("there is no text to look at: give one, or - to read it from stdin")
    looked = maps.look(run, read, target, config, to=to, hardware=HardwareConfig(**given["hardware"]))
    if out is not None:
        from cli.console.messages import note

        for path in files.write(out, [looked], config):
            note(f"wrote {path}")
    elif as_json:
        from cli.console.escapes import json_line

        print(json_line(figures.as_json(looked, config)))
    else:
        _draw(looked, config)


def _draw(looked: Looked, config: AttentionConfig) -> None:
    from shutil import get_terminal_size

    from cli.attention.figures import lines
    from cli.console.heat_map import colours_of_terminal

    for line in lines(looked, config, width=get_terminal_size().columns, colours=colours_of_terminal()):
        print(line)
