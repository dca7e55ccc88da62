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

SYSTEMS = ("huggingface", "peft")


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

    The folder has weights, settings, tokenizer and a model card. It needs no code of ours: the model becomes a GPT-2,
    GPT-NeoX, Llama, Mistral, Qwen2 or Qwen3, whichever has the same blocks. If none has, the fields that decide are
    named. Of a run with adapters (lm train --lora), huggingface gets the whole model; peft gets the adapters alone, for
    the folder that the run became that they were trained beside.

    Examples:
      lm export runs/novel --to huggingface -o novel-hf
      lm export runs/letters --to peft -o letters-adapters
      lm export runs/novel/checkpoints/step-400 -o novel-400
    """
    if to not in SYSTEMS:
        raise UsageError(f"--to cannot be {to!r}{suggestion(to, SYSTEMS)}; choose from {', '.join(SYSTEMS)}")
    if to == "peft":
        _export_adapters(run, out)
    else:
        _export_model(run, out)
    fact("wrote", str(out))


def _export_model(run: Path, out: Path) -> None:
    from lm.interop.hugging_face import exporting

    exported = exporting.export(run, out)
    fact("model", f"{exported.family.architecture} of transformers, which needs no code of ours: {exported.decided_by}")


def _export_adapters(run: Path, out: Path) -> None:
    from lm.base import named_base
    from lm.interop.hugging_face.adapters import export_adapters
    from lm.run_folder import find_checkpoint

    family = export_adapters(run, out)
    fact("lora", f"for a {family.architecture}, which {named_base(find_checkpoint(run))} is exported as")
