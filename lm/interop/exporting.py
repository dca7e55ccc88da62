"""A run written for another system, and what there is to say of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lm.base import named_base
from lm.config.export import ExportConfig
from lm.interop.ctranslate2 import exporting as ctranslate2
from lm.interop.gguf import exporting as gguf
from lm.interop.hugging_face import exporting as hugging_face
from lm.interop.hugging_face.adapters import export_adapters
from lm.run_folder import find_checkpoint


def export(run: Path, out: Path, config: ExportConfig) -> Mapping[str, str]:
    """Write a run's best checkpoint, or a checkpoint, as another system loads it; it is there whole or not at all.

    Args:
        run: the run or checkpoint.
        out: a folder, or for gguf a file, to be made.
        config: the system, and the type of the numbers.

    Returns:
        What it was written as and what decided that, by what is said: "model", for gguf "words" too; for peft "lora".

    Raises:
        InputError: the run is damaged, there is something at `out`, or a package is not installed.
        UsageError: the system has nothing like the model; the message names the fields that decide.
    """
    if config.to == "gguf":
        return _to_gguf(run, out, config)
    if config.to == "ctranslate2":
        kind = ctranslate2.export(run, out, number_type=config.number_type)
        return {"model": f"for ctranslate2.{kind}, {config.number_type}"}
    if config.to == "peft":
        return {"lora": f"for a {export_adapters(run, out).architecture}, as which {_base_of(run)} is exported"}
    exported = hugging_face.export(run, out)
    return {"model": f"{exported.family.architecture}{exported.how}: {exported.decided_by}"}


def _base_of(run: Path) -> str | None:
    return named_base(find_checkpoint(run))


def _to_gguf(run: Path, out: Path, config: ExportConfig) -> Mapping[str, str]:
    exported = gguf.export(run, out, number_type=config.number_type)
    words, left_out = exported.vocabulary.words, exported.vocabulary.left_out
    return {
        "model": f"{exported.architecture.architecture} of llama.cpp, {config.number_type}: {exported.decided_by}",
        "words": f"parted as by {words}" + (f"; {left_out}" if left_out else ""),
    }
