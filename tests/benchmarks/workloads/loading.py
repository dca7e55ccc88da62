"""Loading of models."""

from functools import partial
from pathlib import Path

import torch

from lm.config.run_config import HardwareConfig
from lm.engine import load_for_decoding
from tests.benchmarks.comparison import Workload
from tests.benchmarks.workloads.paths import model_path
from tests.benchmarks.workloads.timing import timer


def lm(folder: Path, threads: int, *, shape: str, dtype: str) -> Workload:
    """Load the model of a run."""
    load = partial(load_for_decoding, model_path(folder, shape), HardwareConfig("cpu", dtype, threads))
    return Workload(timer(load))


def transformers(folder: Path, threads: int, *, shape: str, dtype: str) -> Workload:
    """Load a model of Hugging Face."""
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    path = model_path(folder, shape, "hugging-face")
    return Workload(timer(partial(AutoModelForCausalLM.from_pretrained, path, dtype=getattr(torch, dtype))))
