"""Compiling the model: what it needs on this machine, and how long it takes."""

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
from lm.training.objective import States, final_states

COMPILATION_SECONDS = 60.0
"""About what it takes before the first step; 90 s were measured for the preset tiny on two cores."""


def check_compiler(device: str, *, is_recurrent: bool = False) -> None:
    """UsageError unless there is what torch.compile needs to build kernels for a device, and something to build.

    Recurrent layers run in kernels that torch has for them, which it does not compile.

    On a CPU it writes C++ that includes Python's headers, on a GPU Triton compiles a launcher in C. Without either,
    torch fails at the first step with pages of its own code.
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


def compiled(model: Model, device: torch.device) -> States:
    """`final_states` of a model, compiled when they are first asked for.

    Its tables of positions are filled before that: one that came into being at the first step would make the second
    step compile everything again.
    """
    for module in model.modules():
        if isinstance(module, PositionTable):
            module.fill(device)
    states: States = torch.compile(final_states(model))
    return states


@contextmanager
def failures_in_a_line() -> Iterator[None]:
    """While open, a failure of the compiler, or of what torch wrote for it, is a TrainingError of one line."""
    from torch._dynamo.exc import TorchDynamoException  # noqa: PLC0415 (takes a second, and only to compile)

    try:
        yield
    except TorchDynamoException as error:
        first, *rest = str(error).strip().splitlines()
        reason = f"{first} {rest[0]}" if rest and first.endswith(":") else first
        raise TrainingError(
            f"torch.compile fails on this model ({reason}); saved checkpoints are untouched: resume without it",
            settings=("compile",),
        ) from error
