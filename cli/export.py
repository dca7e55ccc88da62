"""`lm export`: a run as other systems load it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from cli.console.messages import fact
from cli.flags.loading import RunPath
from cli.flags.options import Given, takes
from lm.config.export import ExportConfig


@takes({"export": ExportConfig})
def export(
    run: RunPath,
    *,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="PATH", help="A new or an empty folder; for gguf a new file.")
    ],
    given: Given,
) -> None:
    """Write a run as another system loads it: transformers, llama.cpp or CTranslate2.

    For huggingface it becomes a folder with weights, settings, tokenizer and a model card. It needs no code of ours:
    the model becomes a GPT-2, GPT-NeoX, Llama, Mistral, Qwen2 or Qwen3, whichever has the same blocks. For gguf it
    becomes one file with the tokenizer in it, which llama.cpp and what is built on it read; for ctranslate2 a folder
    for its Generator, or of a translation model its Translator. What a system has no counterpart of is named.

    Examples:
      lm export runs/novel --to huggingface -o novel-hf
      lm export runs/novel --to gguf --type q8_0 -o novel.gguf
      lm export runs/german --to ctranslate2 --type int8 -o german-ct2
    """
    config = ExportConfig(**given["export"])
    for name, text in _WRITERS[config.to](run, out, config):
        fact(name, text)
    fact("wrote", str(out))


def _to_hugging_face(run: Path, out: Path, _: ExportConfig) -> Iterator[tuple[str, str]]:
    from lm.interop.hugging_face import exporting

    exported = exporting.export(run, out)
    yield "model", f"{exported.family.architecture} of transformers, which needs no code of ours: {exported.decided_by}"


def _to_gguf(run: Path, out: Path, config: ExportConfig) -> Iterator[tuple[str, str]]:
    from lm.interop.gguf import exporting

    exported = exporting.export(run, out, number_type=config.number_type)
    yield "model", f"{exported.architecture.architecture} of llama.cpp, {config.number_type}: {exported.decided_by}"
    vocabulary = exported.vocabulary
    yield "words", f"parted as by {vocabulary.words}" + (f"; {vocabulary.left_out}" if vocabulary.left_out else "")


def _to_ctranslate2(run: Path, out: Path, config: ExportConfig) -> Iterator[tuple[str, str]]:
    from lm.interop.ctranslate2 import exporting

    runs_it = exporting.export(run, out, number_type=config.number_type)
    yield "model", f"for ctranslate2.{runs_it}, {config.number_type}"


_WRITERS = {"huggingface": _to_hugging_face, "gguf": _to_gguf, "ctranslate2": _to_ctranslate2}
