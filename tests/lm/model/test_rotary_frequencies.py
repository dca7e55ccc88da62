"""Frequencies of rotary positions equal those of transformers, which computes them in float32."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from lm.config.model import ModelConfig
from lm.model.positions import rotary_frequencies
from tests.tolerances import ulps

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


def test_unscaled_they_are_powers_of_the_base():
    config = ModelConfig(d_model=32, n_heads=2, rope_base=100.0, rotary_share=0.5)
    assert rotary_frequencies(config).tolist() == pytest.approx([100.0 ** (-2 * i / 8) for i in range(4)])


def test_a_factor_of_one_changes_nothing():
    plain = ModelConfig(d_model=64, n_heads=2)
    for kind in ("linear", "llama3", "yarn"):
        torch.testing.assert_close(
            rotary_frequencies(ModelConfig(d_model=64, n_heads=2, rope_scaling=kind)), rotary_frequencies(plain)
        )
