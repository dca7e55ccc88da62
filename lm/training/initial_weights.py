"""Initial weights of a new run that come from another run: compatibility checks, loading, first loss."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lm.checkpoint import load_tokenizers, prepare_for_inference
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.config.settings import list_settings
from lm.corpus.store import Manifest
from lm.data.training_data import TrainingData
from lm.errors import InputError, UsageError
from lm.hardware import select_inference_hardware
from lm.model.lora import trainable_weights
from lm.model.transformer import build_model, init_empty_weights
from lm.run_folder import find_checkpoint, load_config
from lm.tokenizer.tokenizer import Tokenizer
from lm.training.objective import summed_loss
from lm.training.run import Run
from lm.training.training_corpus import TrainingCorpus

_EVALUATED_TOKENS = 8192
"""Enough to measure a loss to about 0.03 nats."""
_POOR_FIT, _MIN_BYTES_PER_TOKEN = 0.6, 1.25
"""Bytes/token of a new text below which a tokenizer fits it badly: relative to the text that the run was trained on, or
absolute if that is not known."""


def check_compatible(model: ModelConfig, path: Path) -> None:
    """Raise UsageError unless a model can start from the weights of a run, apart from vocabulary and labels."""
    theirs = load_config(find_checkpoint(path)).model.replace(labels=())
    ours = model.replace(vocab_size=theirs.vocab_size, source_vocab_size=theirs.source_vocab_size, labels=())
    if _shapes(ours) == _shapes(theirs):
        return
    settings = ours.settings()  # derived settings are not the cause
    differing = [
        option.name
        for option in list_settings("model", ModelConfig)
        if _changes_shapes(theirs, {option.name: settings[option.name]})
    ]
    values = "; ".join(
        f"{name} is {getattr(ours, name)} here and {getattr(theirs, name)} in {path}" for name in differing
    )
    raise UsageError(f"the weights to start from don't fit this model: {values}")


def check_tokenizers(path: Path, tokenizer: Tokenizer, source_tokenizer: Tokenizer | None = None) -> None:
    """Raise UsageError unless the tokenizers have the token IDs that the weights were trained with.

    Args:
        path: run or checkpoint to start from.
        tokenizer: of the targets; of both sides if there is no other.
        source_tokenizer: of the sources, if they have their own.
    """
    loaded, loaded_source = load_tokenizers(find_checkpoint(path))
    sides = ((tokenizer, loaded), (source_tokenizer or tokenizer, loaded_source or loaded))
    if all(ours.extends(other) for ours, other in sides):
        return
    problem = f"the weights of {path} were learned with another tokenizer, whose IDs stand for other tokens"
    raise UsageError(f"{problem}: use that one, or train a new model")


def count_spare_tokens(path: Path, tokenizer: Tokenizer) -> int:
    """Return the number of embedding rows of a run's model beyond a tokenizer's vocabulary; 0 if it has more tokens."""
    return max(0, load_config(find_checkpoint(path)).model.vocab_size - tokenizer.vocab_size)


def add_token_rows(
    path: Path, weights: Mapping[str, Tensor], tokenizer: Tokenizer, config: RunConfig
) -> dict[str, Tensor]:
    """Return the weights of a run for a tokenizer with further special tokens.

    The rows of these in the embedding, and in the output layer, begin with the mean of the others (Hewitt 2021).

    Raises:
        UsageError: only adapters would be trained, which leave the new rows as they are.
    """
    old, _ = load_tokenizers(find_checkpoint(path))
    model = load_config(find_checkpoint(path)).model
    if not tokenizer.extends(old) or tokenizer.vocab_size == old.vocab_size:
        return dict(weights)
    if config.lora:
        raise UsageError(
            "the run to start from has no tokens for the chat template, and adapters train no embeddings: train all "
            "weights, or start from a run with a chat template",
        )
    first, size = old.vocab_size, max(model.vocab_size, tokenizer.vocab_size)
    larger = _shapes(model.replace(vocab_size=model.vocab_size + 1))
    resized = dict(weights)
    for name, value in weights.items():
        if larger[name] == value.shape:  # does not depend on the vocabulary
            continue
        rows = torch.empty((size, *value.shape[1:]), dtype=value.dtype)
        rows[: model.vocab_size] = value
        rows[first : tokenizer.vocab_size] = value[:first].float().mean(dim=0).to(value.dtype)
        resized[name] = rows
    return resized


def describe_poor_fit(path: Path, corpus: TrainingCorpus) -> str | None:
    """Return a warning if the subword tokenizer of a run takes many more tokens for a new corpus than for its own."""
    plan = load_config(find_checkpoint(path)).plan
    here, there = _bytes_per_token(corpus.folder), None if plan is None else _bytes_per_token(Path(plan.data))
    least = _MIN_BYTES_PER_TOKEN if there is None else _POOR_FIT * there
    if corpus.tokenizer.kind in ("char", "byte") or here is None or here >= least:
        return None
    compared = "" if there is None else f", and {there:.2f} on the text of {path}"
    return f"the tokenizer takes {here:.2f} bytes/token on this text{compared}"


def _bytes_per_token(folder: Path) -> float | None:
    """Return the bytes/token of the training split of prepared data; None if they are gone."""
    with contextlib.suppress(InputError):
        return Manifest.read(folder).splits["train"].bytes_per_token
    return None


def _shapes(model: ModelConfig) -> dict[str, torch.Size]:
    with init_empty_weights():
        return {name: value.shape for name, value in build_model(model).state_dict().items()}


def _changes_shapes(model: ModelConfig, change: dict[str, Any]) -> bool:
    """Whether a setting changes the shapes of a model's weights."""
    try:
        return _shapes(model.replace(**change)) != _shapes(model)
    except UsageError:  # valid only together with another differing setting
        return True


def load_initial_weights(run: Run, weights: Mapping[str, Tensor]) -> None:
    """Load initial weights into a run; UsageError if they don't fit its model.

    The head of a masked model may differ (labels instead of tokens, or other labels); then it starts at random.
    """
    base = weights
    if run.config.model.is_masked:
        weights = _with_own_head(run, weights)
    if run.config.lora:
        weights = _with_adapters(run, weights, base)
    weights = run.shard_weights(weights)
    try:
        run.model.load_state_dict(weights)
    except RuntimeError as error:
        problem = str(error).splitlines()[-1].strip()
        message = f"the weights to start from don't fit this model: {problem}"
        raise UsageError(message) from None
    if run.ema is not None:
        run.ema.load(run.model.state_dict())


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


def _with_own_head(run: Run, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the weights with the run's own head, if the head has another shape."""
    if has_matching_head(run.config.model, weights):
        return weights
    head, theirs = (run.model.select_output_weights(tensors) for tensors in (run.model.state_dict(), weights))
    return {name: value for name, value in weights.items() if name not in theirs} | head


def _with_adapters(run: Run, weights: Mapping[str, Tensor], loaded: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the weights with the run's adapters; UsageError if a frozen weight would start at random.

    Args:
        weights: to start from, including the run's own head if it needs one.
        loaded: the same, without that.
    """
    own = trainable_weights(run.model)
    if random := next((name for name in weights if weights[name] is not loaded.get(name) and name not in own), None):
        problem = f"the run to start from has no {random} for this model, which adapters leave as it is"
        raise UsageError(f"{problem}: train all weights instead")
    return own | dict(weights)
