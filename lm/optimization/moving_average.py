"""A moving average of the weights, which is better than where the last noisy steps have left them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class MovingAverage:
    """Weights that follow a model's slowly.

    Source: Polyak and Juditsky 1992; exponential, with a decay that grows to its value, as in TensorFlow.
    """

    def __init__(self, model: nn.Module, *, decay: float) -> None:
        """Starts at the model's weights."""
        self._model, self._decay = model, decay
        self.weights = {name: value.detach().clone() for name, value in model.state_dict().items()}

    def update(self, step: int) -> None:
        """Follow the model, after optimizer step number `step`."""
        decay = min(self._decay, (1 + step) / (10 + step))
        averages, weights = list(self.weights.values()), list(self._model.state_dict().values())
        torch._foreach_lerp_(averages, weights, 1 - decay)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Go on from these averages."""
        for name, value in self.weights.items():
            value.copy_(weights[name])

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """While open, the model has the averages for its weights."""
        trained = {name: value.clone() for name, value in self._model.state_dict().items()}
        self._model.load_state_dict(self.weights)
        try:
            yield
        finally:
            self._model.load_state_dict(trained)
