"""The baseline: the same workloads with Hugging Face's GPT-2 of the same shape."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.data.batch import Batch, micro_batch_rows
from lm.hardware import Hardware, synchronized_time, time_work
from lm.training.measure import Timer, scaled_step_timer
from lm.training.run import Run


def is_installed() -> bool:
    return find_spec("transformers") is not None


def gpt2(config: ModelConfig) -> Any:
    """Build a `GPT2LMHeadModel` with the layers, width, heads, context, vocabulary and dropout of a model."""
    transformers = importlib.import_module("transformers")
    transformers.logging.set_verbosity_error()
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=config.vocab_size, n_positions=config.context_length, n_embd=config.d_model,
            n_layer=config.n_layers, n_head=config.n_heads, resid_pdrop=config.dropout, embd_pdrop=config.dropout,
            attn_pdrop=config.attention_dropout, bos_token_id=None, eos_token_id=None, pad_token_id=0,
        )
    )  # fmt: skip


def training_timer(run: Run, *, batch_scale: float = 1.0) -> Timer:
    """Time a training step on a run's first batch, with its dtype and micro-batches."""
    return plain_training_timer(run.config, run.hardware, lambda: run.data.batch(0), batch_scale=batch_scale)


def plain_training_timer(
    config: RunConfig, hardware: Hardware, batches: Callable[[], Batch], *, batch_scale: float = 1.0
) -> Timer:
    """Time a step of a plain training loop: AdamW and gradient clipping, on the result of `batches`.

    Args:
        batch_scale: see `lm.training.measure`.
    """
    training = config.training
    model = gpt2(config.model).to(hardware.torch_device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=training.learning_rate, fused=True)

    def step() -> None:
        batch = batches()
        for part in batch.split(micro_batch_rows(config, batch)):
            inputs = torch.from_numpy(part.inputs).to(hardware.torch_device, non_blocking=True)
            with hardware.autocast():
                loss = model(inputs, labels=inputs, use_cache=False).loss
            (loss * (part.rows / batch.rows)).backward()
        float(nn.utils.clip_grad_norm_(model.parameters(), training.clip or math.inf))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return scaled_step_timer(lambda: time_work(step, hardware), [optimizer], hardware, batch_scale=batch_scale)


def inference_model(config: ModelConfig, hardware: Hardware) -> Any:
    """Build `gpt2` in eval mode, on the device and in the dtype of `hardware`."""
    return gpt2(config).to(device=hardware.torch_device, dtype=hardware.torch_dtype).eval()


def prefill_timer(model: Any, prompt: Tensor, hardware: Hardware) -> Timer:
    """Time the prefill of a prompt, including the logits of the next token."""
    prompt = prompt.to(hardware.torch_device)

    @torch.inference_mode()
    def read() -> None:
        model(prompt, use_cache=True, logits_to_keep=1)

    return lambda: time_work(read, hardware)


def decode_timer(model: Any, prompt: Tensor, hardware: Hardware, *, rows: int, tokens: int) -> Timer:
    """Time `generate` for `tokens` tokens per row, without the prefill."""
    prompts = prompt.to(hardware.torch_device).repeat(rows, 1)
    seen = torch.ones_like(prompts)

    def work() -> float:
        clock = _PrefillClock(hardware)
        model.generate(
            prompts, attention_mask=seen, max_new_tokens=1 + tokens, do_sample=False, logits_processor=[clock]
        )
        assert clock.began is not None
        return synchronized_time(hardware) - clock.began

    return work


class _PrefillClock:
    """A logits processor that records when the first logits are ready."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self.began: float | None = None

    def __call__(self, _ids: Tensor, scores: Tensor) -> Tensor:
        if self.began is None:
            self.began = synchronized_time(self._hardware)
        return scores
