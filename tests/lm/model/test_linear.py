import pytest
import torch

from lm.model import layers
from lm.model.layers import ACTIVATIONS, Linear, OneDNNKernels, linear
from tests.tolerances import assert_close

SIZES = [(1, 8, 8), (7, 160, 480), (64, 160, 480), (320, 160, 333)]


def fuses(dtype: torch.dtype, monkeypatch) -> bool:
    """Whether oneDNN has the product with its activation in this type here."""
    choose(monkeypatch, fused=[dtype])
    try:
        with torch.no_grad():
            Linear(1000, 1000).to(dtype).forward_activated(torch.ones(2, 1000, dtype=dtype), "gelu-tanh")
    except (AttributeError, RuntimeError):
        return False
    return True


@pytest.fixture(params=[True, False], ids=["oneDNN", "MKL"])
def library(request, monkeypatch):
    """Each of the two libraries, whatever the processor."""
    if request.param and not torch.backends.mkldnn.is_available():
        pytest.skip("torch without oneDNN")
    choose(monkeypatch, products=request.param)


def choose(monkeypatch, *, products=False, fused=()):
    """Have oneDNN compute these, as if it had been faster."""
    monkeypatch.setattr(layers, "onednn_kernels", OneDNNKernels(products, {*fused}))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("has_bias", [True, False])
def test_matmul_equals_float64(library, size, has_bias):
    rows, inputs, outputs = size
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (
        torch.randn(shape, generator=generator) for shape in ((rows, inputs), (outputs, inputs), outputs)
    )
    expected = x.double() @ weight.double().T + (bias.double() if has_bias else 0)
    with torch.no_grad():
        found = linear(x, weight, bias if has_bias else None)
        assert_close(found, expected, terms=inputs)
        folded = linear(x.view(1, rows, inputs).expand(2, -1, -1), weight, bias if has_bias else None)
        assert_close(folded, found.expand(2, -1, -1), terms=inputs)
        turned = linear(x.T.contiguous().T, weight, bias if has_bias else None)
        assert_close(turned, found, terms=inputs)


@pytest.mark.parametrize("rows", [1, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", ["gelu-tanh", "gelu", "swiglu"])
def test_activations_equal_float64(activation, dtype, rows, monkeypatch):
    """Also where product and activation are one, if this processor can do that."""
    torch.manual_seed(0)
    layer, x = (
        Linear(160, 480).to(dtype),
        torch.randn(2, rows, 160, generator=torch.Generator().manual_seed(0)).to(dtype),
    )
    exact = ACTIVATIONS[activation](x.double() @ layer.weight.double().T + layer.bias.double())
    for fused in ((), *([(dtype,)] if fuses(dtype, monkeypatch) else [])):
        choose(monkeypatch, fused=fused)
        with torch.no_grad():
            found = layer.forward_activated(x, activation)
        assert found.dtype is dtype
        assert_close(found, exact, terms=160)
