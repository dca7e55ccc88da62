"""The baseline: training, prefill and decoding with Hugging Face's GPT-2 of the same shape."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.data import Batch
from lm.hardware import Hardware, synchronized_time, time_work
from lm.training.measure import Timer


def gpt2(config: ModelConfig) -> Any:
    """Build a `GPT2LMHeadModel` with the layers, width, heads, context, vocabulary and dropout of a model."""
    transformers.logging.set_verbosity_error()
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=config.vocab_size, n_positions=config.context_length, n_embd=config.d_model,
            n_layer=config.n_layers, n_head=config.n_heads, resid_pdrop=config.dropout, embd_pdrop=config.dropout,
            attn_pdrop=config.attention_dropout, bos_token_id=None, eos_token_id=None, pad_token_id=0,
        )
    )  # fmt: skip


def training_timer(config: RunConfig, hardware: Hardware, batches: Callable[[], Batch]) -> Timer:
    """Time a step of a plain training loop: AdamW and gradient clipping, on the result of `batches`."""
    training = config.training
    model = gpt2(config.model).to(hardware.torch_device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=training.learning_rate, fused=True)

    def step() -> None:
        batch = batches()
        for part in batch.split(training.micro_batch_size):
            inputs = torch.from_numpy(part.inputs).to(hardware.torch_device, non_blocking=True)
            with hardware.autocast():
                loss = model(inputs, labels=inputs, use_cache=False).loss
            (loss * (part.rows / batch.rows)).backward()
        float(nn.utils.clip_grad_norm_(model.parameters(), training.clip or math.inf))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return lambda: time_work(step, hardware)


def prefill_timer(model: Any, prompt: Tensor, hardware: Hardware) -> Timer:
    """Time the prefill of a prompt, including the logits of the next token."""
    prompt = prompt.to(hardware.torch_device)
    read = torch.inference_mode()(partial(model, prompt, use_cache=True, logits_to_keep=1))
    return lambda: time_work(read, hardware)


def decode_timer(model: Any, prompt: Tensor, hardware: Hardware, *, rows: int, tokens: int) -> Timer:
    """Time `generate` for `tokens` tokens per row, without the prefill."""
    prompts = prompt.to(hardware.torch_device).repeat(rows, 1)
    options = {"attention_mask": torch.ones_like(prompts), "max_new_tokens": 1 + tokens, "do_sample": False}

    def work() -> float:
        times: list[float] = []

        def clock(_ids: Tensor, scores: Tensor) -> Tensor:  # as a logits processor, from the first logits on
            times.append(synchronized_time(hardware))
            return scores

        model.generate(prompts, logits_processor=[clock], **options)
        return synchronized_time(hardware) - times[0]

    return work
