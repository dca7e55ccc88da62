"""torch.compile: its requirements on this machine, and its errors."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from lm.errors import TrainingError, UsageError
from lm.model.positions import PositionTable
from lm.model.transformer import Model
from lm.training.objective import HiddenStatesFn, hidden_states_fn

COMPILATION_SECONDS = 60.0
"""Approximate compile time before the first step; 90 s were measured for the preset tiny on two cores."""


def check_compiler(device: str, *, is_recurrent: bool = False) -> None:
    """Raise UsageError unless torch.compile can compile the model on a device.

    torch.compile needs a C++ compiler and Python's headers on a CPU, a C compiler on a GPU (Triton), and doesn't
    compile recurrent layers. Otherwise torch would fail at the first step with a long traceback.
    """
    if is_recurrent:
        problem = "only transformer blocks are compiled, not recurrent layers: leave it out"
        raise UsageError(problem, settings=("compile",))
    if device == "cpu":
        names = [os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")]
    else:
        names = [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"]
    if not any(shutil.which(name) for name in names):
        raise UsageError(
            f"torch.compile needs a compiler, and there is no {' or '.join(names)}: install one, or leave it out",
            settings=("compile",),
        )
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").is_file():
        raise UsageError(
            f"torch.compile needs Python's headers, and {headers} has no Python.h: install them, or leave it out",
            settings=("compile",),
        )


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
            settings=("compile",),
        ) from error
