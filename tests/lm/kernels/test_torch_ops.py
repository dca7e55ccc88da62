"""Products of tensors by compiled code, and what is left to torch."""

import pytest
import torch

from lm.kernels import code_cache, torch_ops
from tests.lm.machine_code import kept_code

pytest.importorskip("numba")


def test_it_equals_the_matmul_and_without_compiled_code_is_left_to_torch(monkeypatch, pytestconfig):
    of = torch.Generator().manual_seed(1)
    values = torch.randint(-127, 128, (24, 70), generator=of, dtype=torch.int8)
    scales, bias, x = torch.rand(24, generator=of), torch.randn(24, generator=of), torch.randn(3, 5, 70, generator=of)
    with monkeypatch.context() as patch:
        patch.setattr(code_cache, "is_complete", lambda: False)
        assert torch_ops.int8_matmul(values, scales, bias, x) is None
    expected = x.double() @ (values.double() * scales[:, None]).T
    with kept_code(pytestconfig), monkeypatch.context() as patch:
        patch.setattr(code_cache, "is_complete", lambda: True)
        for shift in (None, bias):
            found = torch_ops.int8_matmul(values, scales, shift, x)
            right = expected if shift is None else expected + shift
            torch.testing.assert_close(found.double(), right, atol=3e-4 * expected.abs().max().item(), rtol=0)
        assert torch_ops.int8_matmul(values, scales, bias, x[:0]).shape == (0, 5, 24)
