"""Positions as the papers define them."""

import math
from typing import get_args

import pytest
import torch

from lm.config.model import ModelConfig
from lm.config.model_fields import Positions
from lm.errors import UsageError
from lm.model.attention_inputs import AttentionInputs
from lm.model.mask import Mask
from lm.model.positions import ABSOLUTE_SCHEMES, RELATIVE_SCHEMES, InputEmbedding, PositionTable, sinusoidal_table
from lm.model.transformer import build_model
from tests.tolerances import approx, assert_close


@pytest.mark.parametrize("interleaved", [True, False])
def test_sinusoids_follow_the_formula(interleaved):
    table, width = sinusoidal_table(50, 16, interleaved=interleaved), 16
    for position in (0, 1, 7, 49):
        for i in range(width // 2):
            angle = position / 10_000 ** (2 * i / width)
            sine, cosine = (2 * i, 2 * i + 1) if interleaved else (i, width // 2 + i)
            assert float(table[position, sine]) == approx(math.sin(angle), scale=angle)
            assert float(table[position, cosine]) == approx(math.cos(angle), scale=angle)


def test_tables_grow_without_changing():
    table = PositionTable(lambda length: torch.arange(float(length)), 4)
    assert table.rows(1, 2, torch.device("cpu")).tolist() == [1, 2]
    assert table.rows(3, 9, torch.device("cpu")).tolist() == list(range(3, 12))


def test_a_long_context_costs_no_more_than_is_used_of_it():
    lengths = []

    def compute(length: int) -> torch.Tensor:
        lengths.append(length)
        return torch.arange(float(length))

    table = PositionTable(compute, 10**9)
    for end in range(1, 30_001, 100):
        assert table.rows(end - 1, 1, torch.device("cpu")).item() == end - 1
    assert max(lengths) < 2 * 30_001
    assert len(lengths) < 4


@pytest.mark.parametrize("positions", ["sinusoidal", "sinusoidal-half", "none", "rotary"])
def test_extends_beyond_the_context(positions):
    embedding = InputEmbedding(ModelConfig(positions=positions, context_length=8, d_model=16, n_heads=2), 10)
    assert embedding(torch.zeros(1, 20, dtype=torch.long)).shape == (1, 20, 16)


def test_learned_positions_refuse_to():
    embedding = InputEmbedding(ModelConfig(positions="learned", context_length=8, d_model=16, n_heads=2), 10)
    embedding(torch.zeros(1, 3, dtype=torch.long), start=5)
    with pytest.raises(UsageError, match="end at 8, but the sequence has 9"):
        embedding(torch.zeros(1, 4, dtype=torch.long), start=5)


def test_each_scheme_of_the_config_is_absolute_or_relative():
    named = set(get_args(Positions)) - {"none"}
    assert not set(ABSOLUTE_SCHEMES) & set(RELATIVE_SCHEMES)
    assert set(ABSOLUTE_SCHEMES) | set(RELATIVE_SCHEMES) == named


@pytest.mark.parametrize("positions", get_args(Positions))
def test_rows_may_differ_in_positions(positions):
    """Tokens after pasts of different lengths, padded, are read as each is alone."""
    model = build_model(ModelConfig(vocab_size=40, context_length=16, d_model=16, n_heads=2, positions=positions))
    past, lengths, following = torch.randint(40, (2, 5)), torch.tensor([5, 2]), torch.randint(40, (2, 3))
    places = lengths[:, None] + torch.arange(3)
    keys = torch.cat((torch.arange(5).expand(2, -1), places), dim=1)
    is_seen = torch.cat((torch.arange(5) < lengths[:, None], torch.ones(2, 3, dtype=torch.bool)), dim=1)
    bias = torch.zeros(2, 1, 3, 8).masked_fill(~is_seen[:, None, None], -torch.inf)
    with torch.no_grad():
        cache = model.new_cache()
        model.hidden(past, cache=cache)
        inputs = AttentionInputs(
            Mask.causal(bias=bias), caches=cache.self_attention, query_positions=places, key_positions=keys
        )
        together = model.logits(model.decode(following, inputs))
        for row, length in enumerate(lengths.tolist()):
            alone = model(torch.cat((past[row, :length], following[row]))[None])[0, length:]
            assert_close(together[row], alone, model=model)


@pytest.mark.parametrize("positions", get_args(Positions))
def test_packed_branches_equal_single_sequences(positions):
    """Three continuations of one past in a row, that don't see each other."""
    model = build_model(ModelConfig(vocab_size=40, context_length=16, d_model=16, n_heads=2, positions=positions))
    past, branches = torch.randint(40, (2, 5)), torch.randint(40, (2, 3, 4))
    apart = torch.block_diag(*torch.ones(3, 4, 4).tril()) > 0
    allowed = torch.cat((torch.ones(12, 5, dtype=torch.bool), apart), dim=1)
    cache = model.eval().new_cache()
    model.hidden(past, cache=cache)
    mask = Mask(bias=torch.zeros(12, 17).masked_fill(~allowed, -torch.inf))
    places = torch.cat((torch.arange(5), torch.arange(5, 9).repeat(3)))[None]
    inputs = AttentionInputs(mask, caches=cache.self_attention, start=5, n_branches=3, key_positions=places)
    together = model.decode(branches.flatten(1), inputs)
    for branch in range(3):
        alone = model.hidden(torch.cat((past, branches[:, branch]), dim=1))[:, 5:]
        assert_close(together[:, 4 * branch : 4 * branch + 4], alone, model=model)
