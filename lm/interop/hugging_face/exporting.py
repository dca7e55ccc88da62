"""A run as a folder that transformers loads without any code of ours."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file

from lm import checkpoint, files, run_folder
from lm.config.decoding import SamplingConfig
from lm.config.model import ModelConfig
from lm.config.run import RunConfig
from lm.errors import InputError
from lm.interop.hugging_face.card import model_card
from lm.interop.hugging_face.configuration import family_of, telling, to_json
from lm.interop.hugging_face.families import Family
from lm.interop.hugging_face.folder import CARD, CONFIG, GENERATION, TOKENIZER_CONFIG, WEIGHTS
from lm.interop.hugging_face.tensors import to_theirs
from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer


@dataclass(frozen=True)
class Exported:
    """What a run was written as: the family, and what decided that."""

    family: Family
    decided_by: str


def export(run: Path, folder: Path) -> Exported:
    """Write a run's best checkpoint, or a checkpoint, as `AutoModelForCausalLM` and `AutoTokenizer` load it.

    Args:
        run: the run or checkpoint.
        folder: to be made; it is there whole or not at all.

    Raises:
        InputError: the run is damaged, or the folder holds something or cannot be made.
        UsageError: no model of transformers is like this one.
    """
    refuse_filled(folder)
    found = run_folder.find_checkpoint(run)
    config = run_folder.load_config(found)
    tokenizer, _ = checkpoint.load_tokenizers(found)
    family = family_of(config.model, tokenizer)
    with fresh_folder(folder) as fresh:
        _write(fresh, found, config, family, tokenizer)
    return Exported(family, telling(config.model, family))


@contextmanager
def fresh_folder(folder: Path) -> Iterator[Path]:
    """A folder to write files into, which gets a name once they are on the disk; InputError if it holds something."""
    folder = folder.resolve()
    refuse_filled(folder)
    fresh = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        fresh.mkdir(parents=True)
        yield fresh
        for path in fresh.iterdir():
            files.sync(path)
        if folder.is_dir():
            folder.rmdir()
        fresh.rename(folder)
    except SafetensorError as error:
        raise InputError(f"{folder}: cannot be written ({error})") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def refuse_filled(folder: Path) -> None:
    """InputError if a folder holds anything or cannot be made: nothing is written over."""
    files.check_folder(folder)
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"{folder}: is not empty; choose an empty or a new folder (-o)")


def _write(folder: Path, found: Path, config: RunConfig, family: Family, tokenizer: Tokenizer) -> None:
    """The files of a folder, from the checkpoint that was found."""
    weights = checkpoint.load_weights(found)
    ids, dtype = _special_ids(tokenizer), str(next(iter(weights.values())).dtype).removeprefix("torch.")
    files.write_json(folder / CONFIG, {**to_json(config.model, family), **ids, "torch_dtype": dtype})
    files.write_json(folder / GENERATION, {**ids, **_sampling()})
    files.write_json(folder / TOKENIZER_CONFIG, _tokenizer_settings(tokenizer, config.model))
    tokenizer.save(folder / FILE_NAME)
    save_file(dict(to_theirs(weights, config.model, family)), folder / WEIGHTS, metadata={"format": "pt"})
    files.replace_text(folder / CARD, model_card(config, family, tokenizer, run_folder.load_state(found)))


def _special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """The tokens that start and end a text, and what rows are filled up with."""
    known = {
        "bos_token_id": tokenizer.start_of_text, "eos_token_id": tokenizer.end_of_text,
        "pad_token_id": tokenizer.end_of_text,
    }  # fmt: skip
    return {name: index for name, index in known.items() if index is not None}


def _sampling() -> dict[str, Any]:
    """How `lm generate` draws unless it is told otherwise."""
    return {"do_sample": True, "temperature": SamplingConfig.temperature, "top_k": 0}


def _tokenizer_settings(tokenizer: Tokenizer, model: ModelConfig) -> dict[str, Any]:
    names = {key.removesuffix("_id"): tokenizer.token(index) for key, index in _special_ids(tokenizer).items()}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **names,
        "model_max_length": model.context_length,
        "padding_side": "left",
        "clean_up_tokenization_spaces": False,
    }
