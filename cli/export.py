"""`lm export`: export a run to another system."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.console.text import print_labelled
from cli.loading import RunPath
from cli.options import Options, with_settings
from lm.config.inference import ExportConfig


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
    from lm.interop import exporting

    for name, text in exporting.export_run(run, out, options.build(ExportConfig)).items():
        print_labelled(name, text)
    print_labelled("wrote", str(out))
