"""The same work by Hugging Face's GPT-2 of the same shape."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from lm.config.model import ModelConfig
from lm.config.run import RunConfig
from lm.data.batch import Batch, micro_batch_rows
from lm.hardware import Hardware, now, timed
from lm.training.measuring import Timed, whole_step
from lm.training.run import Run


def is_installed() -> bool:
    """Whether there is a `transformers` to compare with."""
    return find_spec("transformers") is not None


def gpt2(config: ModelConfig) -> Any:  # noqa: ANN401 (transformers is no dependency)
    """`GPT2LMHeadModel` with the layers, width, heads, context, vocabulary and dropout of a model: GPT-2's block."""
    transformers = importlib.import_module("transformers")
    transformers.logging.set_verbosity_error()
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=config.vocab_size, n_positions=config.context_length, n_embd=config.d_model,
            n_layer=config.n_layers, n_head=config.n_heads, resid_pdrop=config.dropout, embd_pdrop=config.dropout,
            attn_pdrop=config.attention_dropout, bos_token_id=None, eos_token_id=None, pad_token_id=0,
        )
    )  # fmt: skip


def training_timer(run: Run, *, passes: float = 1.0) -> Timed:
    """A step of `plain_training_timer` on a run's first batch, in its arithmetic and micro-batches."""
    return plain_training_timer(run.config, run.hardware, lambda: run.data.batch(0), passes=passes)


def plain_training_timer(
    config: RunConfig, hardware: Hardware, batches: Callable[[], Batch], *, passes: float = 1.0
) -> Timed:
    """A step of a plain loop: AdamW and clipping, on what `batches` gives; see `whole_step`."""
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

    return whole_step(lambda: timed(step, hardware), [optimizer], hardware, passes=passes)


def inference_model(config: ModelConfig, hardware: Hardware) -> Any:  # noqa: ANN401
    """`gpt2` in eval mode, on the device and in the type that `hardware` says."""
    return gpt2(config).to(device=hardware.torch_device, dtype=hardware.torch_dtype).eval()


def prefill_timer(model: Any, prompt: Tensor, hardware: Hardware) -> Timed:  # noqa: ANN401
    """Reading a prompt, up to the logits of the token that follows it."""
    prompt = prompt.to(hardware.torch_device)

    @torch.inference_mode()
    def read() -> None:
        model(prompt, use_cache=True, logits_to_keep=1)

    return lambda: timed(read, hardware)


def decode_timer(model: Any, prompt: Tensor, hardware: Hardware, *, rows: int, tokens: int) -> Timed:  # noqa: ANN401
    """`generate` of `tokens` tokens a row, from where the prompts are read on."""
    prompts = prompt.to(hardware.torch_device).repeat(rows, 1)
    seen = torch.ones_like(prompts)

    def work() -> float:
        clock = _PrefillClock(hardware)
        model.generate(
            prompts, attention_mask=seen, max_new_tokens=1 + tokens, do_sample=False, logits_processor=[clock]
        )
        assert clock.began is not None
        return now(hardware) - clock.began

    return work


class _PrefillClock:
    """Notes when the first logits are there, and leaves them as they are."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self.began: float | None = None

    def __call__(self, _ids: Tensor, scores: Tensor) -> Tensor:
        if self.began is None:
            self.began = now(self._hardware)
        return scores
