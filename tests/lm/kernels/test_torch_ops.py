"""Products of tensors by compiled code, and what is left to torch."""

import pytest
import torch

from lm.kernels import code_cache, torch_ops
from tests.lm.machine_code import kept_code

pytest.importorskip("numba")


@pytest.fixture
def ready(monkeypatch, pytestconfig):
    with kept_code(pytestconfig), monkeypatch.context() as patch:
        patch.setattr(code_cache, "is_complete", lambda: True)
        yield


def drawn():
    of = torch.Generator().manual_seed(1)
    values = torch.randint(-127, 128, (24, 70), generator=of, dtype=torch.int8)
    return values, torch.rand(24, generator=of), torch.randn(24, generator=of), torch.randn(3, 5, 70, generator=of)


@pytest.mark.parametrize("has_bias", [True, False])
def test_it_equals_the_matmul(ready, has_bias):
    values, scales, bias, x = drawn()
    shift = bias if has_bias else None
    expected = x.double() @ (values.double() * scales[:, None]).T + (bias if has_bias else 0)
    found = torch_ops.int8_matmul(values, scales, shift, x)
    torch.testing.assert_close(found.double(), expected, atol=3e-4 * expected.abs().max().item(), rtol=0)
    turned = x.transpose(0, 1)  # whose numbers are not in a line
    assert torch.equal(torch_ops.int8_matmul(values, scales, shift, turned), found.transpose(0, 1))


def test_without_compiled_code_all_is_left_to_torch(monkeypatch):
    monkeypatch.setattr(code_cache, "is_complete", lambda: False)
    assert torch_ops.int8_matmul(*drawn()) is None
