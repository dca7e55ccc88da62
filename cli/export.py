"""`lm export`: a run as a folder that other systems load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.console.messages import fact
from cli.flags.completion import among
from cli.flags.loading import RunPath
from lm.config.options import suggestion
from lm.errors import UsageError

SYSTEMS = ("huggingface",)


def export(
    run: RunPath,
    *,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="NAME",
            help=f"The system that is to load it. One of {', '.join(SYSTEMS)}.",
            autocompletion=among(SYSTEMS),
        ),
    ] = SYSTEMS[0],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="A new or an empty folder.")],
) -> None:
    """Write a run as a folder that Hugging Face's transformers loads, and what reads such folders.

    The folder has weights, settings, tokenizer and a model card. The model becomes a GPT-2, GPT-NeoX, Llama, Mistral,
    Qwen2, Qwen3 or BERT, whichever has the same blocks. If none has, the code that the model needs goes along, for
    trust_remote_code=True, and the fields that decide are named.

    Examples:
      lm export runs/novel --to huggingface -o novel-hf
      lm export runs/novel/checkpoints/step-400 -o novel-400
    """
    if to not in SYSTEMS:
        raise UsageError(f"--to cannot be {to!r}{suggestion(to, SYSTEMS)}; choose from {', '.join(SYSTEMS)}")
    from lm.interop.hugging_face import exporting

    exported = exporting.export(run, out)
    fact("model", f"{exported.family.architecture}{exported.how}: {exported.decided_by}")
    fact("wrote", str(out))
