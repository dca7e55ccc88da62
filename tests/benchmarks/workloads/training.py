"""Optimizer steps: GPT-2's blocks and LoRA, on random tokens, without dropout, by AdamW with gradient clipping."""

import dataclasses
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from lm.config.presets import build_run_config
from lm.config.run_config import LoraConfig, RunConfig
from lm.data import Batch
from lm.hardware import Hardware
from lm.model.cost import training_flops
from lm.training.measure import random_run, training_step_timer
from tests.benchmarks.comparison import Workload
from tests.benchmarks.workloads import hugging_face
from tests.benchmarks.workloads.models import SHAPES
from tests.benchmarks.workloads.paths import model_path
from tests.benchmarks.workloads.timing import timer

LORA_RANK, LEARNING_RATE, CLIP = 8, 1e-4, 1.0
_PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def lm(folder: Path, threads: int, *, shape: str, dtype: str, rows: int, length: int) -> Workload:
    """Take optimizer steps as `lm train` does."""
    return _lm_step(_config(shape, dtype, threads, length), rows)


def transformers(folder: Path, threads: int, *, shape: str, dtype: str, rows: int, length: int) -> Workload:
    """Take optimizer steps in a plain loop over Hugging Face's GPT-2, with autocast."""
    torch.set_num_threads(threads)
    config = _config(shape, dtype, threads, length)
    ids = _random_ids(config, rows)
    return Workload(hugging_face.training_timer(config, Hardware("cpu", dtype, threads), lambda: Batch(ids, ids)))


def lm_lora(folder: Path, threads: int, *, shape: str, dtype: str, length: int) -> Workload:
    """Take a LoRA step on one sequence as `lm train --lora` does."""
    return _lm_step(_config(shape, dtype, threads, length, lora=LoraConfig(rank=LORA_RANK)), 1)


def peft(folder: Path, threads: int, *, shape: str, dtype: str, length: int, autocast: bool) -> Workload:
    """Take a LoRA step on one sequence with PEFT.

    Args:
        folder: of the models.
        threads: of the CPU.
        shape: of the model.
        dtype: of the matmuls.
        length: tokens of the sequence.
        autocast: keep the weights in float32 and compute in `dtype`; else the weights are in `dtype`.
    """
    import peft as package
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    hardware = Hardware("cpu", dtype, threads)
    kept = torch.float32 if autocast else hardware.torch_dtype
    base = AutoModelForCausalLM.from_pretrained(model_path(folder, shape, "hugging-face"), dtype=kept)
    adapters = package.LoraConfig(
        r=LORA_RANK, lora_alpha=2 * LORA_RANK, lora_dropout=0.0, target_modules=_PROJECTIONS, task_type="CAUSAL_LM"
    )
    model = package.get_peft_model(base, adapters).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, fused=True)
    ids = torch.from_numpy(_random_ids(_config(shape, dtype, threads, length), 1))
    autocasting = hardware if autocast else Hardware("cpu", "float32", threads)
    return Workload(timer(partial(_peft_step, model, optimizer, trained, ids, autocasting)))


def _peft_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, trained: list[Tensor], ids: Tensor, hardware: Hardware
) -> None:
    with hardware.autocast():
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    nn.utils.clip_grad_norm_(trained, CLIP)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _lm_step(config: RunConfig, rows: int) -> Workload:
    run = random_run(config, rows=rows)
    flops = training_flops(config.model, rows=rows, length=config.model.context_length, lora=config.lora)
    return Workload(training_step_timer(run), flops)


def _config(shape: str, dtype: str, threads: int, length: int, *, lora: LoraConfig | None = None) -> RunConfig:
    model = dataclasses.replace(SHAPES[shape], context_length=length, dropout=0.0, attention_dropout=0.0)
    training = {"optimizer": "adamw", "learning_rate": LEARNING_RATE, "clip": CLIP}
    config = build_run_config("gpt2", {"training": training, "hardware": {"dtype": dtype, "threads": threads}})
    return dataclasses.replace(config, model=model, lora=lora or config.lora)


def _random_ids(config: RunConfig, rows: int) -> np.ndarray:
    size = (rows, config.model.context_length)
    return np.random.default_rng(0).integers(config.model.vocab_size, size=size)
