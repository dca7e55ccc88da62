"""Positions as the papers define them."""

from __future__ import annotations

import math

import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from lm.config.model import ModelConfig
from lm.errors import UsageError
from lm.model.positions import Embedding, LinearBiases, PositionTable, RotaryPositions, sinusoids


@pytest.mark.parametrize("interleaved", [True, False])
def test_sinusoids_follow_the_formula(interleaved):
    table, width = sinusoids(50, 16, interleaved=interleaved), 16
    for position in (0, 1, 7, 49):
        for i in range(width // 2):
            angle = position / 10_000 ** (2 * i / width)
            sine, cosine = (2 * i, 2 * i + 1) if interleaved else (i, width // 2 + i)
            assert float(table[position, sine]) == pytest.approx(math.sin(angle), abs=1e-6)
            assert float(table[position, cosine]) == pytest.approx(math.cos(angle), abs=1e-6)


def test_rotation_turns_pairs_as_complex_numbers():
    rotation = RotaryPositions(ModelConfig(d_model=16, n_heads=2, rope_base=100.0))(3, 4, torch.device("cpu"))
    x = torch.randn(2, 2, 4, 8)
    turned = rotation(x)
    for offset in range(4):
        pairs = torch.complex(x[:, :, offset, :4], x[:, :, offset, 4:])
        angles = torch.tensor([(3 + offset) * 100.0 ** (-2 * i / 8) for i in range(4)])
        expected = pairs * torch.polar(torch.ones(4), angles)
        torch.testing.assert_close(turned[:, :, offset, :4], expected.real)
        torch.testing.assert_close(turned[:, :, offset, 4:], expected.imag)


def test_rotary_scores_depend_on_distance_alone():
    rotary = RotaryPositions(ModelConfig(d_model=32, n_heads=2))
    query, key = torch.randn(1, 1, 1, 16), torch.randn(1, 1, 1, 16)

    def score(at: int, seen: int) -> float:
        cpu = torch.device("cpu")
        return float((rotary(at, 1, cpu)(query) * rotary(seen, 1, cpu)(key)).sum())

    assert score(9, 4) == pytest.approx(score(105, 100), abs=1e-4)
    assert score(9, 4) != pytest.approx(score(9, 5), abs=1e-4)


@pytest.mark.parametrize("heads", [1, 2, 6, 8, 12])
def test_linear_biases_attend_as_those_of_bloom(heads):
    """Hugging Face counts from the first key, we from the query: the softmax is the same."""
    bias = LinearBiases(ModelConfig(d_model=4 * heads, n_heads=heads, positions="alibi"))(3, 9, torch.device("cpu"))
    theirs = build_alibi_tensor(torch.ones(1, 9), heads, torch.float32).view(heads, 1, 9)
    scores, seen = torch.randn(heads, 3, 9), torch.ones(9, 9).tril()[6:] > 0
    ours, expected = ((scores + each).masked_fill(~seen, -torch.inf).softmax(-1) for each in (bias[0], theirs))
    torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-5)


def test_tables_grow_without_changing():
    table = PositionTable(lambda length: torch.arange(float(length)), 4)
    assert table.rows(1, 2, torch.device("cpu")).tolist() == [1, 2]
    assert table.rows(3, 9, torch.device("cpu")).tolist() == list(range(3, 12))


@pytest.mark.parametrize("positions", ["sinusoidal", "sinusoidal-half", "none", "rotary"])
def test_goes_on_beyond_the_context(positions):
    embedding = Embedding(ModelConfig(positions=positions, context_length=8, d_model=16, n_heads=2), 10)
    assert embedding(torch.zeros(1, 20, dtype=torch.long)).shape == (1, 20, 16)


def test_learned_positions_refuse_to():
    embedding = Embedding(ModelConfig(positions="learned", context_length=8, d_model=16, n_heads=2), 10)
    embedding(torch.zeros(1, 3, dtype=torch.long), start=5)
    with pytest.raises(UsageError, match="end at 8, but the sequence has 9"):
        embedding(torch.zeros(1, 4, dtype=torch.long), start=5)
