import pytest
import torch

from lm.config.lora import LoraConfig
from lm.model import layers as module
from lm.model.layers import ACTIVATIONS, Linear, choose_matmul_kernels, linear
from lm.model.lora import LoraLinear
from tests.tolerances import assert_close

SIZES = [(1, 8, 8), (7, 160, 480), (64, 160, 480), (320, 160, 333)]


@pytest.fixture(params=[True, False], ids=["oneDNN", "MKL"])
def library(request, monkeypatch):
    """Each of the two libraries, whatever the processor."""
    if request.param and not torch.backends.mkldnn.is_available():
        pytest.skip("torch without oneDNN")
    choose(monkeypatch, products=request.param)


def choose(monkeypatch, *, products=False, fused=None):
    """Have oneDNN compute these, as if it had been faster."""
    monkeypatch.setattr(module, "_onednn", module._OneDNNKernels())
    monkeypatch.setattr(module, "_onednn_is_faster", lambda: products)
    monkeypatch.setattr(module, "_fused_is_faster", lambda dtype: dtype is fused)
    for dtype in (torch.float64, torch.bfloat16, torch.float32):
        choose_matmul_kernels(dtype, "gelu-tanh")


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


def test_gradients_are_those_of_torch(library):
    ours, theirs = Linear(160, 480), torch.nn.Linear(160, 480)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(64, 160)
    for layer in (ours, theirs):
        layer(x).square().sum().backward()
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert ours(x).dtype is torch.bfloat16


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
    for fused in {False, fuses(dtype)}:
        choose(monkeypatch, fused=dtype if fused else None)
        with torch.no_grad():
            found = layer.forward_activated(x, activation)
        assert found.dtype is dtype
        assert_close(found, exact, terms=160)


def fuses(dtype: torch.dtype) -> bool:
    """Whether oneDNN has the product with its activation in this type here."""
    try:
        module._onednn_linear_gelu(torch.ones(2, 16, dtype=dtype), torch.ones(16, 16, dtype=dtype), None)
    except (AttributeError, RuntimeError):
        return False
    return True


def test_trained_or_adapted_layers_are_not_fused(monkeypatch):
    choose(monkeypatch, fused=torch.float32)
    monkeypatch.setattr(module, "_onednn_linear_gelu", lambda *_: pytest.fail("in one go"))
    layer, x = Linear(1000, 1000), torch.randn(2, 1000)
    expected = ACTIVATIONS["gelu-tanh"](layer(x))
    torch.testing.assert_close(layer.forward_activated(x, "gelu-tanh"), expected)
    adapted = LoraLinear(layer, LoraConfig(rank=2))
    with torch.no_grad():
        adapted.lora_b.normal_()
        assert torch.equal(adapted.forward_activated(x, "gelu-tanh"), ACTIVATIONS["gelu-tanh"](adapted(x)))


def test_onednn_multiplies_large_float32_matrices_alone(monkeypatch):
    asked = []
    choose(monkeypatch, products=True)
    monkeypatch.setattr(module, "_onednn_linear", lambda x, weight, bias: asked.append(x.dtype))
    with torch.no_grad():
        linear(torch.ones(10, 100), torch.ones(1000, 100))
        linear(torch.ones(10, 100), torch.ones(999, 100))
        linear(torch.ones(10, 100, dtype=torch.float64), torch.ones(1000, 100, dtype=torch.float64))
    linear(torch.ones(10, 100), torch.ones(1000, 100))
    assert asked == [torch.float32]


def test_nothing_is_timed_by_a_forward_pass(monkeypatch):
    """Only `choose_matmul_kernels`, before the first one, asks how fast what is; of types that a model has."""
    monkeypatch.setattr(module, "_onednn", module._OneDNNKernels())
    monkeypatch.setattr(module, "measure_speedup", lambda *_, **__: pytest.fail("timed"))
    layer = Linear(1000, 1000)
    with torch.no_grad():
        layer.forward_activated(layer(torch.ones(10, 1000)), "gelu-tanh")
    choose_matmul_kernels(torch.float64, "swiglu")
