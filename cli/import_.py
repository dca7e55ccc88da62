"""`lm import`: import a model trained elsewhere as a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.console.text import format_count, print_labelled
from cli.loading import run_option
from cli.new_runs import compile_and_record_dtype
from lm.errors import InputError, UsageError


def import_(
    folder: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="Folder with config.json and .safetensors; or ORG/NAME of the Hub."),
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FOLDER", help="Folder of the new run. [hf: default: the cache]"),
    ] = None,
    base: Annotated[
        Path | None,
        run_option("--from", "RUN", "For PEFT adapters: the run of their base model."),
    ] = None,
) -> None:
    """Import a Hugging Face model: GPT-2, Llama, Qwen3, BERT.

    Supported architectures: GPT-2, GPT-NeoX, Llama, Mistral, Qwen2, Qwen3, BERT, Marian. The run can be used like any
    other, and trained further with `lm train --from`. Weights keep their values and dtype. Code in the folder is not
    executed, and pickles are not read. If a model has an unsupported setting, the error names it, and nothing is
    written.

    ORG/NAME, hf:ORG/NAME or hf:ORG/NAME@REVISION is downloaded from the Hugging Face Hub, with the cache, token and
    offline mode (HF_HUB_OFFLINE=1) of its library. lm chat, generate, perplexity and train --from accept hf:ORG/NAME
    too; nothing else is downloaded.

    PEFT adapters become a run beside that of their base model, like one of lm train --lora.

    Examples:
      lm import downloads/SmolLM2-135M -o runs/smollm
      lm import hf:HuggingFaceTB/SmolLM2-135M -o runs/smollm
      lm import downloads/smollm-letters --from runs/smollm -o runs/letters
      lm train letters.txt --from runs/smollm
    """
    from lm.interop.hugging_face.hub import download_model, import_from_hub, is_hub_name
    from lm.interop.hugging_face.importing import import_model
    from lm.interop.hugging_face.peft import import_adapters, is_peft_folder
    from lm.run_folder import count_parameters, find_checkpoint, load_config, refuse_existing

    if not folder.exists() and str(folder).count("/") == 1 and not is_hub_name(folder):  # ORG/NAME
        folder = Path(f"hf:{folder}")
    if is_hub_name(folder) and out is None:
        out = import_from_hub(str(folder), on_import=compile_and_record_dtype)
    elif out is None:
        raise UsageError("name the folder of the new run (-o)")
    else:
        refuse_existing(out)
        source = download_model(str(folder)) if is_hub_name(folder) else folder
        if not is_peft_folder(source):
            import_model(source, out)
            compile_and_record_dtype(out)
        elif base is None:
            raise InputError(f"{folder}: has adapters: name the run of the model that they are for (--from)")
        else:
            import_adapters(source, base, out)
    checkpoint = find_checkpoint(out)
    size = format_count(count_parameters(checkpoint))
    print_labelled("model", f"{size} parameters, context {load_config(checkpoint).model.context_length:,}")
    print_labelled("wrote", str(checkpoint))
