import numpy as np
import pytest
import torch

from tests.tolerances import assert_close


@pytest.mark.parametrize("terms", [1, 10, 100, 1000, 10000])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_rounding_is_accepted_whatever_the_size_of_a_product(terms, scale):
    torch.manual_seed(terms)
    a, b = torch.randn(40, terms) * scale, torch.randn(terms, 40)
    exact = a.double() @ b.double()
    assert_close(a @ b, exact, terms=terms)
    one_by_one = torch.stack([torch.outer(a[:, at], b[at]) for at in range(terms)]).cumsum(0)[-1]
    assert_close(one_by_one, exact, terms=terms)


@pytest.mark.parametrize("terms", [10, 100, 1000])
def test_a_product_left_out_is_not(terms):
    torch.manual_seed(terms)
    a, b = torch.randn(40, terms), torch.randn(terms, 40)
    with pytest.raises(AssertionError):
        assert_close(a[:, 1:] @ b[1:], a @ b, terms=terms)


def test_the_coarser_dtype_decides():
    third = torch.tensor([1 / 3], dtype=torch.float64)
    assert_close(third.bfloat16(), third)
    assert_close(np.float32([1 / 3]), third.numpy())
    with pytest.raises(AssertionError):
        assert_close(third.bfloat16(), third, dtype=torch.float32)
    with pytest.raises(AssertionError):
        assert_close(third.float().double(), third)


def test_infinities_must_be_equal_and_give_no_scale():
    masked = torch.tensor([1.0, -torch.inf])
    assert_close(masked, masked)
    with pytest.raises(AssertionError):
        assert_close(masked, torch.tensor([1.0, 5.0]))
    with pytest.raises(AssertionError):
        assert_close(torch.tensor([1.0, torch.nan]), masked)
