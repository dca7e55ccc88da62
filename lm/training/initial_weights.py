"""Initial weights of a new run that come from another run: token rows, heads, adapters, and their first loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from lm.checkpoint import load_tokenizers, load_weights, prepare_for_inference
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.data.batch import TrainingData
from lm.distributed.parallel import shard_like
from lm.errors import UsageError
from lm.hardware import select_inference_hardware
from lm.model.lora import trainable_weights
from lm.model.transformer import Model, build_model, init_empty_weights
from lm.optim.optimizers import MovingAverage
from lm.run_folder import find_checkpoint, load_config
from lm.tokenizer.tokenizer import Tokenizer
from lm.training.objective import summed_loss

_EVALUATED_TOKENS = 8192
"""Enough to measure a loss to about 0.03 nats."""


def check_tokenizers(path: Path, tokenizer: Tokenizer, source_tokenizer: Tokenizer | None = None) -> None:
    """Raise UsageError unless the tokenizers have the token IDs that the weights were trained with.

    Args:
        path: run or checkpoint to start from.
        tokenizer: of the targets; of both sides if there is no other.
        source_tokenizer: of the sources, if they have their own.
    """
    loaded, loaded_source = load_tokenizers(find_checkpoint(path))
    sides = ((tokenizer, loaded), (source_tokenizer or tokenizer, loaded_source or loaded))
    if not all(ours.extends(other) for ours, other in sides):
        raise UsageError(f"the weights of {path} were learned with another tokenizer: use that one")


def initial_weights(path: Path, tokenizer: Tokenizer, config: RunConfig) -> dict[str, Tensor]:
    """Return the weights of a run for a tokenizer that may have further special tokens.

    The rows of these in the embedding, and in the output layer, begin with the mean of the others (Hewitt 2021).

    Raises:
        UsageError: only adapters would be trained, which leave the new rows as they are.
    """
    weights, (old, _), model = (
        load_weights(path),
        load_tokenizers(find_checkpoint(path)),
        load_config(find_checkpoint(path)).model,
    )
    if not tokenizer.extends(old) or tokenizer.vocab_size == old.vocab_size:
        return weights
    if config.lora:
        raise UsageError("the run to start from has no tokens for the chat template, and adapters train no embeddings")
    first, size = old.vocab_size, max(model.vocab_size, tokenizer.vocab_size)
    with init_empty_weights():
        larger = build_model(model.replace(vocab_size=model.vocab_size + 1)).state_dict()
    for name, value in weights.items():
        if larger[name].shape != value.shape:  # depends on the vocabulary
            rows = torch.empty((size, *value.shape[1:]), dtype=value.dtype)
            rows[: model.vocab_size] = value
            rows[first : tokenizer.vocab_size] = value[:first].float().mean(dim=0).to(value.dtype)
            weights[name] = rows
    return weights


def load_initial_weights(
    model: Model, ema: MovingAverage | None, weights: Mapping[str, Tensor], config: RunConfig
) -> bool:
    """Load initial weights into the model of a run.

    The head of a masked model may differ (labels instead of tokens, or other labels); then it starts at random.

    Returns:
        Whether no part of the model starts at random.

    Raises:
        UsageError: they don't fit the model, or a weight that adapters leave as it is would start at random.
    """
    is_complete, own = has_matching_head(config.model, weights), model.state_dict()
    loaded = {
        name: value
        for name, value in weights.items()
        if is_complete or name not in model.select_output_weights(weights)
    }
    fresh = {} if is_complete else dict(model.select_output_weights(own))
    if config.lora:
        fresh |= {name: value for name, value in trainable_weights(model).items() if name not in loaded}
        if frozen := fresh.keys() - trainable_weights(model).keys():
            raise UsageError(f"the run to start from has no {min(frozen)}, which adapters leave as it is")
    try:
        model.load_state_dict(fresh | {name: shard_like(own.get(name, value), value) for name, value in loaded.items()})
    except RuntimeError as error:
        problem = str(error).splitlines()[-1].strip()
        raise UsageError(f"the weights to start from don't fit this model: {problem}") from None
    if ema is not None:
        ema.load(model.state_dict())
    return is_complete


def has_matching_head(model: ModelConfig, weights: Mapping[str, Tensor]) -> bool:
    """Whether the weights have a head of the shape that the model needs; otherwise it starts at random."""
    if not model.is_masked:
        return True
    with init_empty_weights():
        built = build_model(model)
    own, theirs = (
        {name: value.shape for name, value in built.select_output_weights(tensors).items()}
        for tensors in (built.state_dict(), weights)
    )
    return own == theirs


@torch.inference_mode()
def measure_initial_loss(config: RunConfig, weights: Mapping[str, Tensor], data: TrainingData) -> float | None:
    """Return nats per token of the initial weights on the start of the held-out data.

    None if nothing is held out, or a part of the model starts at random.
    """
    if not data.validation_bytes or not has_matching_head(config.model, weights):
        return None
    hardware = select_inference_hardware(dataclasses.replace(config.hardware, dtype="float32"))
    with init_empty_weights():
        model = build_model(config.model)
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError:  # `load_initial_weights` says what is wrong
        return None
    model, nats, n_targets = prepare_for_inference(model, hardware), 0.0, 0
    for batch in data.validation():
        for part in batch.split(max(1, _EVALUATED_TOKENS // batch.inputs.shape[1])):
            nats, n_targets = nats + float(summed_loss(model, part, hardware)), n_targets + part.n_targets
            if n_targets >= _EVALUATED_TOKENS:
                return nats / n_targets
    return nats / n_targets
