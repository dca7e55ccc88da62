"""`lm import`: import a model trained elsewhere as a run; `lm export`: export a run to another system."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.console import format_count, print_labelled
from cli.loading import RunPath, compile_and_record_dtype, run_option
from cli.options import Options, with_settings
from lm.config.inference import ExportConfig
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
    offline mode (HF_HUB_OFFLINE=1) of its library. lm chat, generate, serve, perplexity and train --from accept
    hf:ORG/NAME too; nothing else is downloaded.

    PEFT adapters become a run beside that of their base model, like one of lm train --lora.

    Examples:
      lm import downloads/SmolLM2-135M -o runs/smollm
      lm import hf:HuggingFaceTB/SmolLM2-135M -o runs/smollm
      lm import downloads/smollm-letters --from runs/smollm -o runs/letters
      lm train letters.txt --from runs/smollm
    """
    from lm.interop.hugging_face import download_model, import_from_hub, import_model, is_hub_name
    from lm.interop.peft import import_adapters, is_peft_folder
    from lm.run_folder import count_parameters, find_checkpoint, load_config, refuse_existing

    if not folder.exists() and str(folder).count("/") == 1 and not is_hub_name(folder):  # ORG/NAME
        folder = Path(f"hf:{folder}")
    if is_hub_name(folder) and out is None and base is None:
        out = import_from_hub(str(folder), on_import=compile_and_record_dtype)
    elif out is None:
        raise UsageError("name the folder of the new run (-o)")
    else:
        refuse_existing(out)
        source = download_model(str(folder)) if is_hub_name(folder) else folder
        if is_peft_folder(source):
            if base is None:
                raise InputError(f"{folder}: has adapters: name the run of the model that they are for (--from)")
            import_adapters(source, base, out)
        elif base is not None:
            raise UsageError(f"{folder}: has no adapters, so --from has no use")
        else:
            import_model(source, out)
            compile_and_record_dtype(out)
    checkpoint = find_checkpoint(out)
    size = format_count(count_parameters(checkpoint))
    print_labelled("model", f"{size} parameters, context {load_config(checkpoint).model.context_length:,}")
    print_labelled("wrote", str(checkpoint))


@with_settings(
    {"export": ExportConfig},
    "to type",
)
def export(
    run: RunPath,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="PATH", help="New or empty folder; for gguf a new file.")],
    options: Options,
) -> None:
    """Export to transformers, PEFT, llama.cpp or CTranslate2.

    --to huggingface writes a folder: weights, config.json, tokenizer, model card. The model is saved as GPT-2,
    GPT-NeoX, Llama, Mistral, Qwen2, Qwen3, BERT or MarianMT if one has the same architecture; else custom code is
    included (trust_remote_code=True).

    --to gguf writes one file with weights and tokenizer, for llama.cpp and tools built on it; --to ctranslate2 a folder
    for its Generator or, of a translation model, its Translator. Unsupported settings are refused by name.

    Adapters (lm train --lora) are merged into the model. --to peft writes a folder of the adapters alone, for the base
    model as exported to huggingface.

    Examples:
      lm export runs/novel --to huggingface -o novel-hf
      lm export runs/novel --to gguf --type q8_0 -o novel.gguf
      lm export runs/letters --to peft -o letters-adapters
      lm export runs/german --to ctranslate2 --type int8 -o german-ct2
    """
    from lm import interop

    for name, text in interop.export_run(run, out, options.build(ExportConfig)).items():
        print_labelled(name, text)
    print_labelled("wrote", str(out))
