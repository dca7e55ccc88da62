"""The flags of `lm train` that are not fields of a config."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.flags import completion
from lm.config.presets import DEFAULT_PRESET, PRESETS

Corpus = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CORPUS…",
        help="Text files, globs, folders (their .txt, .text, .md, .jsonl, .ndjson, .parquet, also compressed), - for "
        "stdin, or a folder of lm prepare.",
    ),
]
Source = Annotated[
    list[str] | None,
    typer.Option(
        "--source", metavar="FILE", help="For translation: sentences, one per line, with --target. Can be repeated."
    ),
]
Target = Annotated[
    list[str] | None,
    typer.Option("--target", metavar="FILE", help="Their translations, line by line."),
]
Pairs = Annotated[
    list[str] | None,
    typer.Option(
        "--pairs",
        metavar="FILE",
        help="Both sides in one file: source, tab, target on each line, or JSON Lines. Can be repeated.",
    ),
]
ValidationSource = Annotated[
    str | None,
    typer.Option(
        "--validation-source",
        metavar="FILE",
        help="Hold out these sentences, with --validation-target, instead of a share of the pairs.",
    ),
]
ValidationTarget = Annotated[
    str | None, typer.Option("--validation-target", metavar="FILE", help="Their translations, line by line.")
]
Heads = Annotated[
    list[str] | None,
    typer.Option(
        "--heads",
        metavar="FILE",
        help="Dependency trees of the sources, for --syntax: on each line the head of each word of the sentence, as in "
        "2 0 2: the number of the word it depends on, or 0 for the root. One file for each of --source, or of --pairs.",
    ),
]
ValidationHeads = Annotated[
    str | None,
    typer.Option("--validation-heads", metavar="FILE", help="The same for --validation-source."),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="FOLDER", help="Folder of the new run [default: a new one under runs/]."),
]
Preset = Annotated[
    str | None,
    typer.Option(
        "--preset",
        metavar="NAME",
        help=f"Start from these settings: {', '.join(PRESETS)} [default: {DEFAULT_PRESET}].",
        autocompletion=completion.presets,
    ),
]
Depth = Annotated[
    int | None,
    typer.Option(
        "--depth",
        metavar="N",
        min=1,
        max=99,
        help="Size a model by one number, its layers: each brings 64 of width and a head, and vocabulary, context, "
        "batch, learning rate and length follow. The preset depth-N is the same; for pairs, with as many layers on "
        "each side, translation-depth-N.",
    ),
]
Portable = Annotated[
    bool,
    typer.Option(
        "--portable",
        help="Build the model of blocks that other systems run too (Qwen3's: RMSNorm, SwiGLU, QK-norm, rotary "
        "positions), so that lm export needs no code of ours. For tiny, small, base, --depth and --budget; the preset "
        "portable-NAME is the same. docs/recipe.md says what it costs.",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Read settings from a TOML file: preset, and tables [model], [training] and so on.",
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="RUN",
        help="Start from the weights of this run, with its tokenizer and a new schedule.",
        autocompletion=completion.runs,
    ),
]
Tokenizer = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        metavar="FILE",
        help="Use this tokenizer.json, or a run's, instead of training one.",
        autocompletion=completion.runs,
    ),
]
Resume = Annotated[
    Path | None,
    typer.Option(
        "--resume",
        help="Go on with this run from its last checkpoint; without a name, with the newest one in runs/ that "
        "is not finished. A larger --steps trains on, with the schedule stretched to it. A corpus is needed only "
        "if the run's tokens are gone.",
        metavar="RUN",
        autocompletion=completion.runs,
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--processes",
        metavar="N",
        min=1,
        help="Train in N processes on this machine, each with its share of every batch, and a GPU of its own where "
        "there are GPUs; a run can go on with another number. Several machines: torchrun (docs/scaling.md).",
    ),
]
TensorBoard = Annotated[
    bool | None,
    typer.Option(
        "--tensorboard/--no-tensorboard",
        help="Write curves and samples for TensorBoard too, into the run's tensorboard/ [default: if a run that goes "
        "on did before].",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print a summary as JSON when done.")]
