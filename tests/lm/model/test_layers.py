"""Layers in float32, bfloat16 and int8, by each library that may compute them, against float64."""

import pytest
import torch

from lm.model import layers
from lm.model.layers import ACTIVATIONS, Linear, linear
from tests.tolerances import assert_close


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("uses_onednn", [False, torch.backends.mkldnn.is_available()])
@pytest.mark.parametrize("size", [(1, 8, 8), (64, 160, 480), (320, 160, 333)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_matmul_equals_float64(uses_onednn, size, has_bias, monkeypatch):
    monkeypatch.setattr(layers, "MKL_IS_SLOW", uses_onednn)
    rows, inputs, outputs = size
    x, weight, bias = drawn(rows, inputs), drawn(outputs, inputs), drawn(outputs) if has_bias else None
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    with torch.no_grad():
        for same in (x, x[None].expand(2, -1, -1), x.T.contiguous().T):
            assert_close(linear(same, weight, bias), expected.expand(*same.shape[:-1], -1), terms=inputs)


@pytest.mark.parametrize("activation", ["gelu-tanh", "gelu", "relu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations_equal_float64(activation, dtype):
    """Also where matmul and activation are fused, if this processor can do that."""
    layer, x = Linear(160, 480).to(dtype), drawn(2, 64, 160).to(dtype)
    with torch.no_grad():
        found = layer.forward_activated(x, activation)
    assert found.dtype is dtype
    exact = ACTIVATIONS[activation](x.double() @ layer.weight.double().T + layer.bias.double())
    assert_close(found, exact, terms=160)


@pytest.mark.parametrize("at_once", [1000, 12, 1])
@pytest.mark.parametrize("has_bias", [True, False])
def test_an_int8_matmul_uses_the_quantised_weights(has_bias, at_once, monkeypatch):
    monkeypatch.setattr(layers, "_WEIGHTS_PER_CHUNK", at_once)
    layer, x = Linear(6, 5, bias=has_bias).requires_grad_(False).to_int8(), torch.randn(2, 3, 6)
    weight = (layer.weight.float() * layer.scale[:, None]).double()
    expected = x.double() @ weight.T + (layer.bias.double() if has_bias else 0)
    assert_close(layer(x), expected, terms=6)
    assert_close(layer.forward_slice(x, slice(1, 3)), expected[..., 1:3], terms=6)
    assert_close(layer.forward_activated(x, "relu"), expected.relu(), terms=6)
