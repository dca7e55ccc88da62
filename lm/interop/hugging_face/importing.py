"""Import a transformers model as a run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from lm import run_folder
from lm.checkpoint import save_checkpoint
from lm.config.data import DataConfig
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.errors import InputError
from lm.interop.hugging_face import tokenizer_files
from lm.interop.hugging_face.configuration import from_json
from lm.interop.hugging_face.family_schema import Family
from lm.interop.hugging_face.folder import CONFIG, find_weights, read_config, read_tensor
from lm.interop.hugging_face.tensors import family_shape, from_family_tensors, locate_tensor
from lm.model.positions import sinusoidal_table
from lm.model.transformer import build_model, init_empty_weights
from lm.safetensors_header import TensorEntry


@dataclass(frozen=True)
class ImportedModel:
    """The family and config of an imported model, and its checkpoint."""

    family: Family
    model: ModelConfig
    checkpoint: Path


def import_model(folder: Path, out: Path) -> ImportedModel:
    """Write a run with the model of a folder as its only checkpoint; it can be used or fine-tuned, not resumed.

    Everything but what files hold twice is checked against their headers before tensors are read, one at a time.

    Args:
        folder: in transformers' layout, with .safetensors and `tokenizer.json`.
        out: the folder of the new run; InputError if it holds a run.

    Raises:
        InputError: the folder is damaged, or its model is not supported; the message names the key.
    """
    run_folder.refuse_existing(out)
    values = read_config(folder)
    family, model = from_json(values, folder / CONFIG)
    tokenizer, source_tokenizer = tokenizer_files.read_tokenizer(folder, model, values)
    if tokenizer.vocab_size > model.vocab_size:
        problem = f"has {tokenizer.vocab_size:,} tokens, but the model {model.vocab_size:,}"
        raise InputError(f"{folder}: its tokenizer {problem} (vocab_size)")
    weights = _normalize_names(find_weights(folder), model, family)
    shapes = _check_shapes(weights, model, family, folder)
    checkpoint = save_checkpoint(
        out,
        config=RunConfig(
            model=model,
            data=DataConfig(keep_line_ends=True),  # as the model was trained
            origin=f"import {family.model_type}",
        ),
        tokenizer=tokenizer,
        source_tokenizer=source_tokenizer,
        model={
            name: from_family_tensors(name, shape, model, family, read=lambda theirs: read_tensor(weights[theirs]))
            for name, shape in shapes.items()
        },
        optimizer={},
        state=run_folder.TrainingState(finished=True),
        is_best=True,
    )
    return ImportedModel(family, model, checkpoint)


def _normalize_names(weights: Mapping[str, TensorEntry], model: ModelConfig, family: Family) -> dict[str, TensorEntry]:
    """Return the tensors by current names, without unused ones.

    Raises:
        InputError: two that are one tensor of the model differ, or stored positions are not sinusoidal.
    """
    is_prefixed = any(name.startswith(family.prefix) for name in weights)
    embedding = locate_tensor("embedding.tokens.weight", model.vocab_size, model, family).names[0]
    head = embedding if model.tie_embeddings else f"{family.head[0]}.weight"
    heads = {f"{name}.weight": head for name in family.head}
    named: dict[str, str] = {}
    for stored_name, entry in weights.items():
        name = _current_name(stored_name, family)
        if name.endswith(family.unused):
            continue
        if family.sinusoids and name.endswith(family.sinusoids):
            table = sinusoidal_table(model.context_length, model.d_model, interleaved=False)
            if entry.shape != table.shape or not torch.allclose(read_tensor(entry).float(), table, rtol=0, atol=4e-3):
                raise InputError(f"{entry.path}: {stored_name} is not sinusoidal, which is not supported by lm")
            continue
        name = heads.get(name, name if is_prefixed else family.prefix + name)
        first = named.setdefault(name, stored_name)
        if first != stored_name and not _are_equal(weights[first], entry):
            raise InputError(f"{entry.path}: {first} differs from {stored_name}, but by {CONFIG} they are one tensor")
    return {name: weights[stored_name] for name, stored_name in named.items()}


def _are_equal(one: TensorEntry, other: TensorEntry) -> bool:
    is_alike = (one.shape, one.dtype) == (other.shape, other.dtype)
    return is_alike and read_tensor(one).equal(read_tensor(other))


def _current_name(name: str, family: Family) -> str:
    old = next((ending for ending in family.renamed if name.endswith(ending)), None)
    return name if old is None else name.removesuffix(old) + family.renamed[old]


def _check_shapes(
    weights: Mapping[str, TensorEntry], model: ModelConfig, family: Family, folder: Path
) -> dict[str, torch.Size]:
    """Return the shapes of our tensors after checking those of the folder.

    Raises:
        InputError: one is missing, unknown, or has another shape.
    """
    _check_layers(weights, model, family, folder)
    try:
        with init_empty_weights():
            shapes = {name: value.shape for name, value in build_model(model).state_dict().items()}
    except (RuntimeError, OverflowError):
        raise InputError(f"{folder / CONFIG}: describes a model too large for any machine") from None
    unused = set(weights)
    for theirs, shape in _expected_shapes(shapes, model, family):
        if theirs not in weights:
            raise InputError(f"{folder}: its weights have no {theirs}, as the model in {CONFIG} has")
        if (found_shape := weights[theirs].shape) != shape:
            raise InputError(f"{weights[theirs].path}: {theirs} is {found_shape}, but by {CONFIG} it is {shape}")
        unused.discard(theirs)
    if unused:
        raise InputError(f"{folder}: its weights have {min(unused)}, which the model in {CONFIG} does not have")
    return shapes


def _check_layers(weights: Mapping[str, TensorEntry], model: ModelConfig, family: Family, folder: Path) -> None:
    """Raise InputError unless the weights have the configured number of layers, before such a model is built."""
    for block, field in ((family.block, "n_layers"), (family.encoder_block, "n_encoder_layers")):
        pattern = re.compile(re.escape(family.prefix + block).replace(r"\{\}", r"(\d+)"))
        n_layers = len({match[1] for name in weights if (match := pattern.match(name))}) if block else 0
        if n_layers != (layers := getattr(model, field)):
            key = next(setting.config_key for setting in family.settings if setting.model_field == field)
            raise InputError(f"{folder / CONFIG}: {key} is {layers:,}, but the weights are of {n_layers:,} layers")


def _expected_shapes(
    shapes: Mapping[str, torch.Size], model: ModelConfig, family: Family
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield their tensors with expected shapes."""
    for name, shape in shapes.items():
        placement = locate_tensor(name, shape[0], model, family)
        for number, theirs in enumerate(placement.names):
            yield theirs, family_shape(shape, placement, number)
