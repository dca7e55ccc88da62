"""torch.compile of a model, and its errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lm.errors import TrainingError
from lm.model.positions import PositionTable
from lm.model.transformer import Model
from lm.training.objective import HiddenStatesFn, hidden_states_fn


def compile_hidden_states(model: Model, device: torch.device) -> HiddenStatesFn:
    """Return `hidden_states_fn` of a model, compiled at the first call.

    Fills position tables first: one created at the first step would cause a recompilation at the second.
    """
    for module in model.modules():
        if isinstance(module, PositionTable):
            module.fill(device)
    states: HiddenStatesFn = torch.compile(hidden_states_fn(model))
    return states


@contextmanager
def converting_compile_errors() -> Iterator[None]:
    """Convert errors of torch.compile to a one-line TrainingError."""
    from torch._dynamo.exc import TorchDynamoException  # noqa: PLC0415 (slow import)

    try:
        yield
    except TorchDynamoException as error:
        first, *rest = str(error).strip().splitlines()
        reason = f"{first} {rest[0]}" if rest and first.endswith(":") else first
        raise TrainingError(
            f"torch.compile fails on this model ({reason}); saved checkpoints are untouched: resume without it",
        ) from error
