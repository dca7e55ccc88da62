"""Arithmetic by hand."""

import pytest

from lm.benchmark.speed import decoding_flops, prefill_flops
from lm.config.model import ModelConfig
from lm.model.cost import training_flops_per_token

CONFIG = ModelConfig(vocab_size=10, context_length=8, d_model=4, n_layers=2, n_heads=1, d_ff=16, activation="gelu",
                     positions="learned")  # fmt: skip
BLOCKS = 2 * (4 * 4 * 4 + 2 * 4 * 16)  # queries, keys, values and what is made of them; up and down
HEAD = 10 * 4


def test_training_counts_matrices_the_head_and_attention():
    assert training_flops_per_token(CONFIG) == 6 * (BLOCKS + HEAD) + 6 * 2 * 4 * 8


def test_a_prompt_needs_the_logits_of_its_last_token_alone():
    by_hand = 8 * 2 * BLOCKS + 2 * HEAD + 8 * 2 * 2 * 4 * 8
    assert prefill_flops(CONFIG, rows=1, length=8) == pytest.approx(by_hand)
    assert prefill_flops(CONFIG, rows=3, length=8) == pytest.approx(3 * by_hand)


def test_a_token_attends_to_those_before_it():
    """2 · layers · d_model · (6² - 5²): the pairs that a sixth token adds."""
    by_hand = 2 * (BLOCKS + HEAD) + 2 * 2 * 4 * (6**2 - 5**2)
    assert decoding_flops(CONFIG, rows=1, start=5, tokens=1) == pytest.approx(by_hand)


def test_decoding_adds_up():
    parts = decoding_flops(CONFIG, rows=2, start=3, tokens=1) + decoding_flops(CONFIG, rows=2, start=4, tokens=2)
    assert decoding_flops(CONFIG, rows=2, start=3, tokens=3) == pytest.approx(parts)
