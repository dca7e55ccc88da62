"""Decoding and prefill: greedy, random weights."""

from functools import partial
from pathlib import Path
from typing import Any

import torch

from lm import benchmark
from lm.config.run_config import HardwareConfig
from lm.engine import load_for_decoding, plan_engines
from lm.hardware import Hardware
from lm.model import DecoderOnly
from lm.model.cost import training_flops
from tests.benchmarks.comparison import Workload
from tests.benchmarks.workloads import hugging_face
from tests.benchmarks.workloads.models import SHAPES
from tests.benchmarks.workloads.paths import model_path
from tests.benchmarks.workloads.timing import timer
from tests.cli.small_runs import make_tokenizer

_START = torch.tensor([[1]])
"""The prompt: one token, so that no system computes a prefill."""


def lm(
    folder: Path, threads: int, *, shape: str, dtype: str, tokens: int, rows: int = 1, compiled: bool = False
) -> Workload:
    """Decode `tokens` tokens per row with a run.

    Args:
        folder: of the models.
        threads: of the CPU.
        shape: of the model.
        dtype: as the setting `dtype`.
        tokens: per row.
        rows: concurrent texts.
        compiled: fail unless compiled code decodes.
    """
    model = load_model(folder, threads, shape, dtype)
    if compiled and plan_engines(model).compiled is None:
        raise RuntimeError("not compiled")
    timer = benchmark.decode_timer(model, _START[0].tolist(), Hardware("cpu", dtype, threads), rows=rows, tokens=tokens)
    whole, past = (training_flops(SHAPES[shape], rows=rows, length=length) / 3 for length in (1 + tokens, 1))
    return Workload(timer, whole - past)


def lm_prefill(folder: Path, threads: int, *, shape: str, dtype: str, tokens: int) -> Workload:
    """Compute the logits after a prompt of random tokens."""
    model = load_model(folder, threads, shape, dtype)
    timer = benchmark.prefill_timer(model, _prompt(shape, tokens)[0].tolist(), Hardware("cpu", dtype, threads))
    return Workload(timer, training_flops(SHAPES[shape], rows=1, length=tokens, n_targets=1) / 3)


def transformers(folder: Path, threads: int, *, shape: str, dtype: str, tokens: int, rows: int = 1) -> Workload:
    """Decode with Hugging Face's `generate`."""
    model = _load_hugging_face(folder, threads, shape, dtype)
    hardware = Hardware("cpu", dtype, threads)
    return Workload(hugging_face.decode_timer(model, _START, hardware, rows=rows, tokens=tokens))


def transformers_prefill(folder: Path, threads: int, *, shape: str, dtype: str, tokens: int) -> Workload:
    """Compute the logits after a prompt of random tokens with Hugging Face's model."""
    model = _load_hugging_face(folder, threads, shape, dtype)
    return Workload(hugging_face.prefill_timer(model, _prompt(shape, tokens), Hardware("cpu", dtype, threads)))


def ctranslate2(folder: Path, threads: int, *, shape: str, dtype: str, tokens: int, rows: int = 1) -> Workload:
    """Decode with CTranslate2's Generator."""
    import ctranslate2 as package

    path = model_path(folder, shape, f"ctranslate2-{dtype}")
    generator = package.Generator(str(path), compute_type=dtype, intra_threads=threads)
    start = [make_tokenizer("bpe").token(int(_START))]
    decode = partial(
        generator.generate_batch, [start] * rows, max_length=tokens, min_length=tokens, end_token=[],
        include_prompt_in_result=False,
    )  # fmt: skip
    return Workload(timer(decode))


def load_model(folder: Path, threads: int, shape: str, dtype: str) -> DecoderOnly:
    """Load a run of random weights as `lm generate` does."""
    model = load_for_decoding(model_path(folder, shape), HardwareConfig("cpu", dtype, threads)).model
    assert isinstance(model, DecoderOnly)
    return model


def _load_hugging_face(folder: Path, threads: int, shape: str, dtype: str) -> Any:
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    path = model_path(folder, shape, "hugging-face")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    return model


def _prompt(shape: str, tokens: int) -> torch.Tensor:
    return torch.randint(SHAPES[shape].vocab_size, (1, tokens), generator=torch.Generator().manual_seed(0))
