"""Exponential moving average (EMA) of the weights in training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lm.model.lora import load_trainable, trainable_weights


class MovingAverage:
    """EMA of the trainable weights of a model.

    Source: Polyak and Juditsky 1992; exponential, with a decay that grows to its final value, as in TensorFlow.
    """

    def __init__(self, model: nn.Module, *, decay: float) -> None:
        """Start at the model's weights; `decay` is the final value."""
        self._model, self._decay = model, decay
        self.weights = {name: value.detach().clone() for name, value in trainable_weights(self._model).items()}

    def update(self, step: int) -> None:
        """Update the average after optimizer step `step`, counted from 1."""
        decay = min(self._decay, (1 + step) / (10 + step))
        averages, weights = list(self.weights.values()), list(trainable_weights(self._model).values())
        torch._foreach_lerp_(averages, weights, 1 - decay)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Load a saved average; KeyError if a weight is missing."""
        for name, value in self.weights.items():
            value.copy_(weights[name])

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Within the context, the model has the averaged weights."""
        trained = {name: value.clone() for name, value in trainable_weights(self._model).items()}
        load_trainable(self._model, self.weights)
        try:
            yield
        finally:
            load_trainable(self._model, trained)
