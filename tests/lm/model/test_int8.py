"""Matrices in 8 bits are near to what they were, and multiply as what they are."""

import pytest
import torch

from lm.model import layers as linear
from lm.model.layers import Linear
from tests.tolerances import assert_close


@pytest.mark.parametrize("at_once", [1000, 12, 1])
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_matmul_uses_the_quantised_weights(has_bias, at_once, monkeypatch):
    monkeypatch.setattr(linear, "_WEIGHTS_PER_CHUNK", at_once)
    layer, x = Linear(6, 5, bias=has_bias).requires_grad_(False).to_int8(), torch.randn(2, 3, 6)
    weight = (layer.weight.float() * layer.scale[:, None]).double()
    expected = x.double() @ weight.T + (layer.bias.double() if has_bias else 0)
    assert_close(layer(x), expected, terms=6)
    assert_close(layer.forward_slice(x, slice(1, 3)), expected[..., 1:3], terms=6)
    assert_close(layer.forward_activated(x, "relu"), expected.relu(), terms=6)
