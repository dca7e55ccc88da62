"""A scope says what is seen, and nothing that a pass through a model leaves behind."""

from __future__ import annotations

import pytest
import torch

from lm.config.model import ModelConfig
from lm.model.attention_inputs import AttentionInputs, LayerKVCache, Mask, ValueResidual
from lm.model.transformer import build_model


@pytest.mark.parametrize("positions", ["rotary", "alibi", "relative", "t5", "none"])
def test_attention_inputs_can_be_reused(positions):
    config = ModelConfig(d_model=16, n_layers=2, n_heads=2, positions=positions, value_residual=True)
    stack, inputs = build_model(config).eval().decoder, AttentionInputs(Mask.causal())
    first, second = torch.randn(2, 5, 16), torch.randn(2, 5, 16)
    expected = stack(first, AttentionInputs(Mask.causal()))
    stack(second, inputs)
    assert torch.equal(stack(first, inputs), expected)


def test_each_layer_has_a_cache_of_its_own_if_there_are_any():
    caches = [LayerKVCache(), LayerKVCache()]
    assert [AttentionInputs(Mask(), caches=caches).layer_cache(layer) for layer in (0, 1)] == caches
    assert AttentionInputs(Mask()).layer_cache(1) is None


def test_values_are_mixed_with_those_of_the_first_layer():
    values, layers = ValueResidual(), torch.randn(3, 1, 2, 5, 4)
    shares = torch.tensor([[0.5, 0.5], [0.25, 2.0], [1.0, -1.0]])
    for value, (of_first, of_own) in zip(layers, shares, strict=True):
        mixed = values.mix(value, torch.stack((of_first, of_own)))
        torch.testing.assert_close(mixed, of_first * layers[0] + of_own * value)
