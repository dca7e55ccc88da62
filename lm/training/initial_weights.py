"""The weights that a new run starts from, where they are another run's instead of random ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lm.checkpoint import load_tokenizers, ready
from lm.config.model import ModelConfig
from lm.config.options import list_options
from lm.config.run import RunConfig
from lm.data.training_data import TrainingData
from lm.errors import UsageError
from lm.hardware import inference_hardware
from lm.model.lora import trainable_weights
from lm.model.transformer import build_model, init_empty_weights
from lm.run_folder import find_checkpoint, load_config
from lm.tokenizer.tokenizer import Tokenizer
from lm.training.objective import summed_loss
from lm.training.run import Run

_EVALUATED_TOKENS = 8192
"""To know a loss to about 0.03 nats."""


def check_weights(model: ModelConfig, path: Path) -> None:
    """UsageError unless a model can start from the weights of a run or checkpoint, vocabularies and labels aside."""
    theirs = load_config(find_checkpoint(path)).model.replace(labels=())
    ours = model.replace(vocab_size=theirs.vocab_size, source_vocab_size=theirs.source_vocab_size, labels=())
    if _shapes(ours) == _shapes(theirs):
        return
    settings = ours.settings()  # what follows from others is not the cause
    differing = [
        described.name
        for described in list_options(ModelConfig)
        if _reshapes(theirs, {described.name: settings[described.name]})
    ]
    values = "; ".join(
        f"{name} is {getattr(ours, name)} here and {getattr(theirs, name)} in {path}" for name in differing
    )
    raise UsageError(f"the weights to start from don't fit this model: {values}", settings=differing)


def check_tokenizers(path: Path, tokenizer: Tokenizer, source_tokenizer: Tokenizer | None = None) -> None:
    """UsageError unless the weights of a run or checkpoint were learned with tokens that these tokenizers have too.

    Args:
        path: the run or checkpoint to start from.
        tokenizer: of the targets; of both sides, if there is no other.
        source_tokenizer: of the sources, where they have their own.
    """
    theirs, of_sources = load_tokenizers(find_checkpoint(path))
    sides = ((tokenizer, theirs), (source_tokenizer or tokenizer, of_sources or theirs))
    if all(ours.sha256 == other.sha256 or ours.has_same_vocabulary(other) for ours, other in sides):
        return
    problem = f"the weights of {path} were learned with another tokenizer, whose IDs stand for other tokens"
    raise UsageError(f"{problem}: use that one, or train a new model", settings=("tokenizer", "from_run"))


def spare_tokens(path: Path, tokenizer: Tokenizer) -> int:
    """The ids that the model of a run has beyond those of its tokenizer, whose vocabulary this one has."""
    return load_config(find_checkpoint(path)).model.vocab_size - tokenizer.vocab_size


def _shapes(model: ModelConfig) -> dict[str, torch.Size]:
    with init_empty_weights():
        return {name: value.shape for name, value in build_model(model).state_dict().items()}


def _reshapes(model: ModelConfig, change: dict[str, Any]) -> bool:
    """Whether a model's weights have other shapes with a setting changed."""
    try:
        return _shapes(model.replace(**change)) != _shapes(model)
    except UsageError:  # it goes only with another setting that differs too
        return True


def start_from(run: Run, weights: Mapping[str, Tensor]) -> None:
    """Give a run these weights before its first step; UsageError if they don't fit its model.

    What stands behind the layers of a masked model may have another shape, for labels instead of tokens, or for more
    or fewer labels. Then it starts at random.
    """
    given = weights
    if run.config.model.is_masked:
        weights = _with_own_head(run, weights)
    if run.config.lora:
        weights = _with_adapters(run, weights, given)
    weights = run.placed(weights)
    try:
        run.model.load_state_dict(weights)
    except RuntimeError as error:
        problem = str(error).splitlines()[-1].strip()
        message = f"the weights to start from don't fit this model: {problem}"
        raise UsageError(message, settings=("from_run", "tokenizer")) from None
    if run.average is not None:
        run.average.load(run.model.state_dict())


def has_head_of(model: ModelConfig, weights: Mapping[str, Tensor]) -> bool:
    """Whether what stands behind the layers of a model has the shape that it has in some weights; else it is random."""
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
def initial_loss(config: RunConfig, weights: Mapping[str, Tensor], data: TrainingData) -> float | None:
    """Nats per token of the weights to start from on the beginning of the held-out data.

    None where nothing is held out, or the weights aren't all of the model's.
    """
    if not data.validation_bytes or not has_head_of(config.model, weights):
        return None
    hardware = inference_hardware(dataclasses.replace(config.hardware, dtype="float32"))
    with init_empty_weights():
        model = build_model(config.model)
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError:  # `start_from` says what is wrong
        return None
    model, nats, predicted = ready(model, hardware), 0.0, 0
    for batch in data.validation():
        for part in batch.split(max(1, _EVALUATED_TOKENS // batch.inputs.shape[1])):
            nats, predicted = nats + float(summed_loss(model, part, hardware)), predicted + part.predicted
            if predicted >= _EVALUATED_TOKENS:
                return nats / predicted
    return nats / predicted


def _with_own_head(run: Run, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Weights with the run's own head in the place of one of another shape."""
    if has_head_of(run.config.model, weights):
        return weights
    head, theirs = (run.model.select_output_weights(tensors) for tensors in (run.model.state_dict(), weights))
    return {name: value for name, value in weights.items() if name not in theirs} | head


def _with_adapters(run: Run, weights: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Weights with the run's adapters; UsageError if what is to stay as it is would start at random.

    Args:
        run: the run.
        weights: to start from, with its own head if it has one.
        given: the same, without that.
    """
    own = trainable_weights(run.model)
    if random := next((name for name in weights if weights[name] is not given.get(name) and name not in own), None):
        problem = f"the run to start from has no {random} for this model, which adapters leave as it is"
        raise UsageError(f"{problem}: train all weights instead", settings=("lora",))
    return own | dict(weights)
