"""`lm import`: a model that was trained elsewhere, as a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.console.messages import fact
from cli.console.numbers import count


def import_(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="A model in transformers' layout: config.json, .safetensors, tokenizer.json."
        ),
    ],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="RUN", help="Folder of the new run.")],
) -> None:
    """Make a run of a model that was trained elsewhere: GPT-2, GPT-NeoX, Llama, Mistral, Qwen2, Qwen3, BERT, Marian.

    The run can be used like any other, and trained on with `lm train --from`; its numbers are those of the folder, in
    their type. Nothing is downloaded, no code of the folder is run, and pickles are not read. If a model has what ours
    cannot have, that is named, and nothing is written.

    Examples:
      lm import downloads/SmolLM2-135M -o runs/smollm
      lm train letters.txt --from runs/smollm --learning-rate 1e-4 --steps 300
    """
    from lm.interop.hugging_face.importing import import_model
    from lm.run_folder import count_parameters

    imported = import_model(folder, out)
    size = count(count_parameters(imported.checkpoint))
    fact("model", f"{imported.family.architecture}, {size} parameters, context {imported.model.context_length:,}")
    fact("wrote", str(imported.checkpoint))
