"""The hardware to run on, its arithmetic, and how several processes share a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from lm.config.settings import Config

Device = Literal["auto", "cpu", "cuda", "mps"]
DType = Literal["auto", "float32", "bfloat16", "float16", "int8"]

INFERENCE_ONLY_DTYPES: tuple[DType, ...] = ("float16", "int8")
"""Dtypes for inference only."""
_Threads = Annotated[int, Meta(ge=1, le=1024)]


@dataclass(frozen=True)
class HardwareConfig(Config):
    """The hardware to run on; `auto` is resolved by measuring the machine.

    Settings:
        device: Device; auto: a GPU if there is one.
        dtype: Dtype of matmuls; float16, int8: inference only.
        threads: CPU threads; default one per core.
    """

    device: Device = "auto"
    dtype: DType = "auto"
    threads: _Threads | None = None


@dataclass(frozen=True)
class DistributionConfig(Config):
    """How several processes hold a model that they train together; a resumed run may change it.

    Settings:
        shard: FSDP: shard weights and optimizer state.
    """

    shard: bool = False


@dataclass(frozen=True)
class WorkersConfig(Config):
    """How many worker processes score or generate.

    Settings:
        processes: Worker processes for files, each with the model.
    """

    processes: _Threads = 1
