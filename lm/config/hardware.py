"""The hardware to run on, its arithmetic, and how several processes share a model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from lm.config.options import CheckedConfig, option
from lm.errors import UsageError

Device = Literal["auto", "cpu", "cuda", "mps"]
DType = Literal["auto", "float32", "bfloat16", "float16", "int8"]

INFERENCE_ONLY_DTYPES: tuple[DType, ...] = ("float16", "int8")
"""Dtypes for inference only."""


@dataclass(frozen=True)
class HardwareConfig(CheckedConfig):
    """The hardware to run on; `auto` is resolved by looking at the machine."""

    device: Device = option("auto", "Where to run: auto takes a GPU if there is one.")
    dtype: DType = option(
        "auto",
        "Arithmetic of the matmuls; auto trains in bfloat16 where that is faster, generates and translates in "
        "what `lm compile RUN` found fastest, and is float32 otherwise. Two are for trained models: float16, and int8, "
        "which keeps the weights in 8 bits, with a scale for each output.",
    )
    threads: int | None = option(None, "CPU threads [default: one per core].", minimum=1, maximum=1024)


def read_threads_variable() -> int | None:
    """Return LM_THREADS; None if not set. UsageError unless it is from 1 to 1,024."""
    text = os.environ.get("LM_THREADS")
    if not text:
        return None
    if not text.strip().isdecimal() or not 1 <= int(text) <= 1024:
        raise UsageError(f"LM_THREADS must be an integer from 1 to 1024, not {text!r}")
    return int(text)


@dataclass(frozen=True)
class DistributionConfig(CheckedConfig):
    """How several processes hold a model that they train together; a resumed run may change it."""

    shard: bool = option(
        False,
        "With several processes: share weights, gradients and the optimizer's state out among them, where each would "
        "have all of them (FSDP); each block is gathered when it is its turn.",
    )
    offload: bool = option(
        False, "With --shard on GPUs: keep the shares in the memory of the machine, and step the optimizer there."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.offload and not self.shard:
            raise UsageError(
                "offload is for a sharded optimizer: give shard too, or leave it out", settings=("shard", "offload")
            )


@dataclass(frozen=True)
class WorkersConfig(CheckedConfig):
    """How many worker processes score or generate."""

    processes: int = option(
        1,
        "Worker processes for files, each with the model and its part of the threads; changes the speed, not the "
        "result.",
        minimum=1,
        maximum=1024,
    )
