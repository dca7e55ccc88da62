"""Start of commands, and loading of models."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.benchmarks.comparison import Workload
from tests.benchmarks.workloads.timing import timer


def command(folder: Path, threads: int, *, arguments: Sequence[str]) -> Workload:
    """Run Python with some arguments, from its start to its exit; "{folder}" and "{threads}" are replaced."""
    words = [word.replace("{folder}", str(folder)).replace("{threads}", str(threads)) for word in arguments]
    run = partial(
        subprocess.run, [sys.executable, *words], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return Workload(timer(run), runs_commands=True)


def lm_load(folder: Path, threads: int, *, shape: str, dtype: str) -> Workload:
    """Load the model of a run."""
    from lm.config.hardware import HardwareConfig
    from lm.engine.fastest_dtype import load_for_decoding
    from tests.benchmarks.workloads.models import model_path

    return Workload(timer(partial(load_for_decoding, model_path(folder, shape), HardwareConfig("cpu", dtype, threads))))


def transformers_load(folder: Path, threads: int, *, shape: str, dtype: str) -> Workload:
    """Load a model of Hugging Face."""
    import torch
    from transformers import AutoModelForCausalLM

    from tests.benchmarks.workloads.models import model_path

    torch.set_num_threads(threads)
    path = model_path(folder, shape, "hugging-face")
    return Workload(timer(partial(AutoModelForCausalLM.from_pretrained, path, dtype=getattr(torch, dtype))))
