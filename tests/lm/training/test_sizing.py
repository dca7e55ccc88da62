"""What a time is enough for."""

from __future__ import annotations

import pytest

from lm.presets import resolve
from lm.training.sizing import fitting

RATE, MEGABYTE = 3e11, 1_000_000


@pytest.mark.parametrize("text_bytes", [0, 10_000, MEGABYTE, 10**9])
@pytest.mark.parametrize("seconds", [-5.0, 1.0, 60.0, 3600.0, 1e6])
def test_every_time_and_text_gives_settings_that_can_be_trained(seconds, text_bytes):
    size = fitting(seconds, rate=RATE, text_bytes=text_bytes)
    config = resolve(f"depth-{size.depth}", size.settings())
    assert config.training.batch_tokens >= config.model.context_length
    assert 0 <= config.model.dropout < 0.5


def test_more_time_or_a_faster_machine_makes_larger_models():
    depths = [fitting(seconds, rate=RATE, text_bytes=MEGABYTE).depth for seconds in (10, 1000, 100_000)]
    assert depths == sorted(set(depths))
    faster = fitting(10, rate=100 * RATE, text_bytes=MEGABYTE)
    assert faster.depth == fitting(1000, rate=RATE, text_bytes=MEGABYTE).depth


def test_tokens_are_what_the_arithmetic_allows():
    size = fitting(600, rate=RATE, text_bytes=MEGABYTE)
    parameters = 12 * size.depth * (64 * size.depth) ** 2
    assert 0.5 < 6 * parameters * size.tokens / (600 * RATE) < 1


def test_more_text_gets_a_larger_vocabulary_and_less_that_holds_back():
    sizes = [fitting(600, rate=RATE, text_bytes=number) for number in (50_000, MEGABYTE, 10**9)]
    assert [size.vocab_size for size in sizes] == sorted({size.vocab_size for size in sizes})
    assert sizes[0].dropout > sizes[-1].dropout == 0
    assert sizes[0].weight_decay > sizes[-1].weight_decay
