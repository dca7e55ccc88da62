"""Import from and export to Hugging Face, PEFT, GGUF (llama.cpp) and CTranslate2, a module each.

Start with `export_run` and `hugging_face.import_model`. Each converts tensor names and layouts, configuration and
tokenizer; `families` describes each supported architecture as data. Only the Python API and the command line may import
this package.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lm.config.inference import ExportConfig


def export_run(run: Path, out: Path, config: ExportConfig) -> Mapping[str, str]:
    """Export a run's best checkpoint, or a checkpoint, atomically.

    Args:
        out: a folder, or for gguf a file, to be created.

    Returns:
        What to report: "model"; for gguf also "tokens"; for peft "lora".

    Raises:
        InputError: the run is damaged, `out` exists or cannot be written, or a package is not installed.
        UsageError: the system has no such model; the message names the fields that decide.
    """
    from lm.interop import ctranslate2, gguf, hugging_face, peft  # noqa: PLC0415 (they import what is beside this)

    systems = {"huggingface": hugging_face, "peft": peft, "gguf": gguf, "ctranslate2": ctranslate2}
    return systems[config.to].export_with_report(run, out, config)
