"""`lm export`: export a run to another system."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.console.messages import print_labelled
from cli.flags.loading import RunPath
from cli.flags.options import ParsedOptions, with_options
from lm.config.export import ExportConfig


@with_options({"export": ExportConfig})
def export(
    run: RunPath,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="PATH", help="New or empty folder; for gguf a new file.")],
    given: ParsedOptions,
) -> None:
    """Export to transformers, PEFT, llama.cpp or CTranslate2.

    For huggingface it becomes a folder with weights, settings, tokenizer and a model card. The model becomes a GPT-2,
    GPT-NeoX, Llama, Mistral, Qwen2, Qwen3, BERT or MarianMT, whichever has the same blocks. If none has, the code that
    the model needs goes along, for trust_remote_code=True, and the fields that decide are named.

    For gguf it becomes one file with the tokenizer in it, which llama.cpp and what is built on it read; for ctranslate2
    a folder for its Generator, or of a translation model its Translator. What they have no counterpart of is refused by
    name.

    A run with adapters (lm train --lora) becomes the whole model in all of these. For peft it becomes a folder of the
    adapters alone, which go with the model that the run they were trained beside becomes for huggingface.

    Examples:
      lm export runs/novel --to huggingface -o novel-hf
      lm export runs/novel --to gguf --type q8_0 -o novel.gguf
      lm export runs/letters --to peft -o letters-adapters
      lm export runs/german --to ctranslate2 --type int8 -o german-ct2
    """
    from lm.interop import exporting

    for name, text in exporting.export_run(run, out, ExportConfig(**given["export"])).items():
        print_labelled(name, text)
    print_labelled("wrote", str(out))
