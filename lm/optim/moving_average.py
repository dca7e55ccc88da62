"""A moving average of the weights, which generalises better than the weights after the last, noisy steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lm.model.lora import load_trainable, trainable_weights


class MovingAverage:
    """Weights that follow a model's slowly, those that are trained.

    Source: Polyak and Juditsky 1992; exponential, with a decay that grows to its value, as in TensorFlow.
    """

    def __init__(self, model: nn.Module, *, decay: float) -> None:
        """An average that starts at the model's weights, with this decay once it has grown to it."""
        self._model, self._decay = model, decay
        self.weights = {name: value.detach().clone() for name, value in trainable_weights(self._model).items()}

    def update(self, step: int) -> None:
        """Take the model's weights into the average, after optimizer step number `step`, counted from 1."""
        decay = min(self._decay, (1 + step) / (10 + step))
        averages, weights = list(self.weights.values()), list(trainable_weights(self._model).values())
        torch._foreach_lerp_(averages, weights, 1 - decay)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Replace the average by one that was saved; KeyError if a weight is missing there."""
        for name, value in self.weights.items():
            value.copy_(weights[name])

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """While open, the model has the average for its weights; afterwards those that are trained again."""
        trained = {name: value.clone() for name, value in trainable_weights(self._model).items()}
        load_trainable(self._model, self.weights)
        try:
            yield
        finally:
            load_trainable(self._model, trained)
