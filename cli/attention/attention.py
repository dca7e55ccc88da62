"""`lm attention`: show the attention of a model in a text, or of a translation to its source."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from cli.arguments import read_text_argument
from cli.console.text import format_json_line
from cli.loading import RunPath
from cli.options import Options, with_settings
from lm.config.evaluation import AttentionConfig
from lm.config.hardware import HardwareConfig
from lm.errors import UsageError

_Text = Annotated[str | None, typer.Argument(metavar="TEXT", help="Text; - or none: stdin.")]
_Target = Annotated[
    str | None, typer.Option("--target", metavar="TEXT", help="A translation, to show its cross-attention.")
]
_To = Annotated[str | None, typer.Option("--to", metavar="LANGUAGE", help="Target language, for a run with several.")]
_Heads = Annotated[
    str | None,
    typer.Option("--dependency-heads", metavar="HEADS", help='Dependency tree: head of each word, as "2 0 2".'),
]
_Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="FILE", help="File to write: .html, .png, .svg, .jsonl or .pharaoh."),
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON: weights of all layers and heads.")]


@with_settings(
    {"attention": AttentionConfig, "hardware": HardwareConfig},
    "layer head unit device dtype threads",
)
def attention(
    run: RunPath,
    text: _Text = None,
    *,
    target: _Target = None,
    to: _To = None,
    heads: _Heads = None,
    out: _Out = None,
    as_json: _AsJson = False,
    options: Options,
) -> None:
    """Show attention weights as a heat map.

    Rows are queries, columns are keys. As a key a word has the sum of its tokens' weights, as a query their mean, so
    each row sums to 100%. In a GPT a word attends to itself and earlier words, the start of the text (<s>) included, in
    a masked model to the whole text. In an encoder-decoder, --target shows the cross-attention of a translation: of
    each of its words while it is predicted, and of its end (</s>); without it, the encoder's self-attention is shown.
    In a run with --set model.decoder_only=true the words of a translation attend to the text and to earlier words.

    Attention shows where information flows, not why a model decides as it does.

    Examples:
      lm attention runs/novel "It was the best of times"
      lm attention runs/novel "It was the best of times" --layer 2 --head 1 --unit tokens
      lm attention runs/novel "It was the best of times" -o attention.html
      lm attention runs/en-de "A dog runs." --target "Ein Hund rennt." -o alignments.pharaoh
    """
    config = options.build(AttentionConfig)
    from cli.attention import output
    from cli.console.heat_map import detect_colours
    from lm.checkpoint import load_model
    from lm.evaluation.attention import compute_attention
    from lm.hardware import select_inference_hardware
    from lm.text.dependency_trees import parse_heads

    if out is not None:
        output.check_output_path(out)
    read = read_text_argument(text) or ""
    if not read.strip():
        raise UsageError("there is no text: give one, or - to read it from stdin")
    tree = None if heads is None else parse_heads(heads, read, where="--dependency-heads")
    loaded = load_model(run, select_inference_hardware(options.build(HardwareConfig)))
    shown = compute_attention(loaded, read, target, unit=config.unit, to=to, dependency_heads=tree)
    if out is not None:
        output.write_maps(out, [shown], config)
    elif as_json:
        print(format_json_line(output.to_dict(shown, config)))
    else:
        width = shutil.get_terminal_size().columns
        for line in output.render_lines(shown, config, width=width, colours=detect_colours()):
            print(line)
