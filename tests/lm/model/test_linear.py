import pytest
import torch

from lm.model import linear as module
from lm.model.linear import Linear, linear

SIZES = [(1, 8, 8), (7, 160, 480), (64, 160, 480), (320, 160, 333)]


@pytest.fixture(params=[True, False], ids=["oneDNN", "MKL"])
def library(request, monkeypatch):
    """Each of the two libraries, whatever the processor."""
    if request.param and not torch.backends.mkldnn.is_available():
        pytest.skip("torch without oneDNN")
    monkeypatch.setattr(module, "_onednn_is_faster", lambda: request.param)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("has_bias", [True, False])
def test_the_product_is_that_of_float64(library, size, has_bias):
    rows, inputs, outputs = size
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (
        torch.randn(shape, generator=generator) for shape in ((rows, inputs), (outputs, inputs), outputs)
    )
    expected = x.double() @ weight.double().T + (bias.double() if has_bias else 0)
    with torch.no_grad():
        found = linear(x, weight, bias if has_bias else None)
        torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=1e-5)
        folded = linear(x.view(1, rows, inputs).expand(2, -1, -1), weight, bias if has_bias else None)
        torch.testing.assert_close(folded, found.expand(2, -1, -1), atol=1e-4, rtol=1e-5)
        turned = linear(x.T.contiguous().T, weight, bias if has_bias else None)
        torch.testing.assert_close(turned, found, atol=1e-4, rtol=1e-5)


def test_gradients_are_those_of_torch(library):
    ours, theirs = Linear(160, 480), torch.nn.Linear(160, 480)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(64, 160)
    for layer in (ours, theirs):
        layer(x).square().sum().backward()
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert ours(x).dtype is torch.bfloat16


def test_onednn_multiplies_large_float32_matrices_alone(monkeypatch):
    asked = []
    monkeypatch.setattr(module, "_onednn_is_faster", lambda: True)
    monkeypatch.setattr(module, "_by_onednn", lambda x, weight, bias: asked.append(x.dtype))
    with torch.no_grad():
        linear(torch.ones(10, 100), torch.ones(1000, 100))
        linear(torch.ones(10, 100), torch.ones(999, 100))
        linear(torch.ones(10, 100, dtype=torch.float64), torch.ones(1000, 100, dtype=torch.float64))
    linear(torch.ones(10, 100), torch.ones(1000, 100))
    assert asked == [torch.float32]
