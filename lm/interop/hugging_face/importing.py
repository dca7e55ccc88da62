"""Import a transformers model as a run."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from lm import files, run_folder
from lm.checkpoint import save_checkpoint
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.errors import InputError
from lm.interop.hugging_face import tokenizer_files
from lm.interop.hugging_face.configuration import from_json
from lm.interop.hugging_face.families import Family
from lm.interop.hugging_face.folder import CONFIG, read_weights
from lm.interop.hugging_face.tensors import empty_tensors, from_family_tensors, locate_tensor, split_tensor
from lm.model.positions import sinusoidal_table


def import_model(folder: Path, out: Path) -> Path:
    """Write a run with the model of a folder as its only checkpoint; it can be used or fine-tuned, not resumed.

    Args:
        folder: in transformers' layout, with .safetensors and `tokenizer.json`.
        out: the folder of the new run; InputError if it holds a run.

    Returns:
        The checkpoint.

    Raises:
        InputError: the folder is damaged, or its model is not supported; the message names the key or the tensor.
    """
    run_folder.refuse_existing(out)
    values = files.read_json(folder / CONFIG)
    family, model = from_json(values, folder / CONFIG)
    tokenizer, source_tokenizer = tokenizer_files.read_tokenizer(folder, model, values)
    if tokenizer.vocab_size > model.vocab_size:
        problem = f"has {tokenizer.vocab_size:,} tokens, but the model {model.vocab_size:,}"
        raise InputError(f"{folder}: its tokenizer {problem} (vocab_size)")
    weights = _read_named_weights(folder, model, family)
    if model.n_layers + model.n_encoder_layers > len(weights):
        raise InputError(f"{folder / CONFIG}: has more layers than the weights tensors")
    ours = empty_tensors(model)
    _check_shapes(weights, ours, model, family, folder)
    return save_checkpoint(
        out,
        config=RunConfig(
            model=model,
            origin=f"import {family.model_type}",
        ),
        tokenizer=tokenizer,
        source_tokenizer=source_tokenizer,
        model={
            name: from_family_tensors(name, len(empty), model, family, read=weights.__getitem__)
            for name, empty in ours.items()
        },
        optimizer={},
        state=run_folder.TrainingState(finished=True),
        is_best=True,
    )


def _read_named_weights(folder: Path, model: ModelConfig, family: Family) -> dict[str, Tensor]:
    """Return the tensors of a folder by current names, without unused ones.

    Raises:
        InputError: two that are one tensor of the model differ, or stored positions are not sinusoidal.
    """
    stored = list(read_weights(folder))
    prefix = "" if any(name.startswith(family.prefix) for name, _ in stored) else family.prefix
    embedding, head = (family.layers.get(layer, layer) + ".weight" for layer in ("embedding.tokens", "head"))
    weights: dict[str, Tensor] = {}
    for stored_name, value in stored:
        name = stored_name
        for old, current in family.renamed.items():
            name = name.removesuffix(old) + current if name.endswith(old) else name
        if name.endswith(family.unused):
            continue
        if family.sinusoids and name.endswith(family.sinusoids):
            table = sinusoidal_table(model.context_length, model.d_model, interleaved=False)
            if value.shape != table.shape or not torch.allclose(value.float(), table, rtol=0, atol=4e-3):
                raise InputError(f"{folder}: {name} is not sinusoidal, which is not supported by lm")
            continue
        name = prefix + name if name != head else embedding if model.tie_embeddings else head
        earlier = weights.setdefault(name, value)
        if earlier is not value and (earlier.dtype != value.dtype or not earlier.equal(value)):
            raise InputError(f"{folder}: {stored_name} differs from a copy, but {name} is one tensor by {CONFIG}")
    return weights


def _check_shapes(
    weights: dict[str, Tensor], ours: dict[str, Tensor], model: ModelConfig, family: Family, folder: Path
) -> None:
    """Raise InputError if a tensor of the folder is missing, unknown, or has another shape than the config says."""
    expected = dict(
        pair
        for name, empty in ours.items()
        for pair in split_tensor(empty, locate_tensor(name, len(empty), model, family), model)
    )
    for name in {**expected, **weights}:
        found, wanted = (tuple(each[name].shape) if name in each else "missing" for each in (weights, expected))
        if found != wanted:
            raise InputError(f"{folder}: {name} is {found}, but by {CONFIG} it is {wanted}")
        if not weights[name].is_floating_point():
            raise InputError(f"{folder}: {name} is {weights[name].dtype}; quantized models are not read")
