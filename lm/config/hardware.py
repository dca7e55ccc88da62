"""The hardware to run on, and its arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lm.config.options import Checked, option

Device = Literal["auto", "cpu", "cuda", "mps"]
DType = Literal["auto", "float32", "bfloat16", "float16", "int8"]

UNTRAINED: tuple[DType, ...] = ("float16", "int8")
"""Types that models are used in, but not trained."""


@dataclass(frozen=True)
class HardwareConfig(Checked):
    """The hardware to run on; `auto` is resolved by looking at the machine."""

    device: Device = option("auto", "Where to run: auto takes a GPU if there is one.")
    dtype: DType = option(
        "auto",
        "Arithmetic of the matrix products; auto trains in bfloat16 where that is faster, generates and translates in "
        "what `lm compile RUN` found fastest, and is float32 otherwise. Two are for trained models: float16, and int8, "
        "which keeps the weights in 8 bits, with a scale for each output.",
    )
    threads: int | None = option(None, "CPU threads [default: one per core].", minimum=1, maximum=1024)
