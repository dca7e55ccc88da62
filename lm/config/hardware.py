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
    """The hardware to run on; `auto` is resolved by measuring the machine."""

    device: Device = option("auto", "Device; auto: a GPU if there is one.")
    dtype: DType = option("auto", "Dtype of matmuls; float16, int8: inference only.")
    threads: int | None = option(None, "CPU threads.", minimum=1, maximum=1024, default_text="one per core")


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

    shard: bool = option(False, "FSDP: shard weights and optimizer state.")
    offload: bool = option(False, "With --shard: keep the shards in CPU memory.", requires="distribution.shard")


@dataclass(frozen=True)
class WorkersConfig(CheckedConfig):
    """How many worker processes score or generate."""

    processes: int = option(1, "Worker processes for files, each with the model.", minimum=1, maximum=1024)
