"""Timed workloads: prefill and decoding as in `lm generate`, with random weights."""

from __future__ import annotations

from collections.abc import Callable

import torch

from lm.checkpoint import prepare_for_inference
from lm.config.model import ModelConfig
from lm.decoding.batching import Sample, decode
from lm.decoding.sampling import Sampler
from lm.decoding.session import DecodeSession
from lm.engine.selection import plan_engines
from lm.hardware import Hardware, synchronized_time, time_work
from lm.model.transformer import DecoderOnly, build_model
from lm.training.step_timing import Timer

_GREEDY = Sampler(greedy=True)
_FEW = 8
_SHARE_OF_A_CALL = 1 / 4


def random_model(config: ModelConfig, hardware: Hardware) -> DecoderOnly:
    """Build a decoder-only model as a checkpoint would be loaded."""
    model = build_model(config)
    assert isinstance(model, DecoderOnly)
    return prepare_for_inference(model, hardware)


def random_prompt(config: ModelConfig) -> torch.Tensor:
    """(1, length) random IDs that fill half of the context."""
    length = max(1, config.context_length // 2)
    return torch.randint(config.vocab_size, (1, length), generator=torch.Generator().manual_seed(0))


def prefill_timer(model: DecoderOnly, prompt: torch.Tensor, hardware: Hardware) -> Timer:
    """Time the prefill of a prompt, including the logits of the next token."""
    return lambda: time_work(lambda: DecodeSession(plan_engines(model)).add(prompt.tolist()), hardware)


def decode_timer(model: DecoderOnly, prompt: torch.Tensor, hardware: Hardware, *, rows: int, tokens: int) -> Timer:
    """Time the generation of `tokens` tokens in each of `rows` concurrent rows, after prefill and the first token."""

    def work() -> float:
        samples = [Sample(prompt[0].tolist(), _GREEDY, _GREEDY.rng(number), 1 + tokens) for number in range(rows)]
        events = decode(DecodeSession(plan_engines(model)), samples, batch_size=rows)
        for _ in range(rows):
            next(events)
        start = synchronized_time(hardware)
        for _ in events:
            pass
        return synchronized_time(hardware) - start

    return work


def choose_timed_tokens(decoding_of: Callable[[int], Timer], *, max_tokens: int, seconds: float) -> int:
    """Choose how many tokens to time: a small part of the given seconds, but a few at least.

    Args:
        decoding_of: returns the timer of a number of tokens.
    """
    few = min(_FEW, max_tokens)
    token_seconds = decoding_of(few)() / few
    return max(few, min(max_tokens, int(_SHARE_OF_A_CALL * seconds / token_seconds)))
