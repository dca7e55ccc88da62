"""The arithmetic of what is measured, as `lm.model.cost` counts it: a forward pass is a third of training."""

from __future__ import annotations

from lm.config.model import ModelConfig
from lm.model.cost import training_flops


def prefill_flops(config: ModelConfig, *, rows: int, length: int) -> float:
    """Arithmetic of reading prompts; logits are wanted of their last tokens alone."""
    unwanted = 2.0 * rows * (length - 1) * config.vocab_size * config.d_model
    return _forward_flops(config, rows=rows, length=length) - unwanted


def decoding_flops(config: ModelConfig, *, rows: int, start: int, tokens: int) -> float:
    """Arithmetic of feeding `tokens` tokens a row one by one, after `start` of them that a cache holds."""
    return _forward_flops(config, rows=rows, length=start + tokens) - _forward_flops(config, rows=rows, length=start)


def _forward_flops(config: ModelConfig, *, rows: int, length: int) -> float:
    return training_flops(config, rows=rows, length=length) / 3
