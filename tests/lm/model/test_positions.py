"""Positions as the papers define them."""

import math

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from lm.config.model import ModelConfig
from lm.model.positions import (
    Rotation,
    rotary_frequencies,
    rotary_table,
    sinusoidal_table,
)
from tests.tolerances import approx, ulps


def _plain(width: int, base: float) -> torch.Tensor:
    return torch.tensor([base ** (-2 * i / width) for i in range(width // 2)], dtype=torch.float64)


@pytest.mark.parametrize("interleaved", [True, False])
def test_sinusoids_follow_the_formula(interleaved):
    table, width = sinusoidal_table(50, 16, interleaved=interleaved), 16
    for position in (0, 1, 7, 49):
        for i in range(width // 2):
            angle = position / 10_000 ** (2 * i / width)
            sine, cosine = (2 * i, 2 * i + 1) if interleaved else (i, width // 2 + i)
            assert float(table[position, sine]) == approx(math.sin(angle), scale=angle)
            assert float(table[position, cosine]) == approx(math.cos(angle), scale=angle)


def test_rotation_equals_complex_multiplication():
    rotation = Rotation(*rotary_table(7, _plain(8, 100.0))[3:].unbind(1))
    x = torch.randn(2, 2, 4, 8)
    turned = rotation(x)
    for offset in range(4):
        pairs = torch.complex(x[:, :, offset, :4], x[:, :, offset, 4:])
        angles = torch.tensor([(3 + offset) * 100.0 ** (-2 * i / 8) for i in range(4)])
        expected = pairs * torch.polar(torch.ones(4), angles)
        torch.testing.assert_close(turned[:, :, offset, :4], expected.real)
        torch.testing.assert_close(turned[:, :, offset, 4:], expected.imag)


def test_the_gradient_equals_autograd():
    rotation = Rotation(*rotary_table(5, _plain(8, 100.0)).double().unbind(1))
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(rotation, x)


SCALED = {
    "linear": ({"rope_factor": 3.0}, {"factor": 3.0}),
    "llama3": (
        {"rope_factor": 8.0, "rope_context": 64, "rope_slow": 1.5, "rope_fast": 4.5},
        {"factor": 8.0, "original_max_position_embeddings": 64, "low_freq_factor": 1.5, "high_freq_factor": 4.5},
    ),
    "yarn": (
        {"rope_factor": 4.0, "rope_context": 128},
        {"factor": 4.0, "original_max_position_embeddings": 128},
    ),
    "yarn, all set": (
        {"rope_factor": 4.0, "rope_context": 96, "rope_slow": 2.0, "rope_fast": 20.0, "rope_temperature": 1.3},
        {"factor": 4.0, "original_max_position_embeddings": 96, "beta_slow": 2.0, "beta_fast": 20.0,
         "attention_factor": 1.3},
    ),
}  # fmt: skip


@pytest.mark.parametrize("base", [100.0, 10_000.0, 500_000.0])
@pytest.mark.parametrize("head", [16, 64])
@pytest.mark.parametrize("name", SCALED)
def test_scaled_as_transformers_scales_them(name, head, base):
    kind, (ours, theirs) = name.split(",")[0], SCALED[name]
    config = ModelConfig(context_length=512, d_model=2 * head, n_heads=2, rope_base=base, rope_scaling=kind, **ours)
    reference = LlamaConfig(
        hidden_size=2 * head, num_attention_heads=2, max_position_embeddings=512,
        rope_parameters={"rope_type": kind, "rope_theta": base, **theirs},
    )  # fmt: skip
    expected, temperature = ROPE_INIT_FUNCTIONS[kind](reference, torch.device("cpu"))
    torch.testing.assert_close(rotary_frequencies(config).float(), expected, atol=0, rtol=ulps(16))
    assert (config.rope_temperature or 1.0) == pytest.approx(temperature)
