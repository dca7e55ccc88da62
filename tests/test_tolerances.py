import numpy as np
import pytest
import torch
from torch import nn

from tests.tolerances import approx, assert_close, rounding_error


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


def test_sums_of_bfloat16_are_rounded_once():
    values = torch.ones(3, dtype=torch.bfloat16)
    assert rounding_error(values, terms=10000) == rounding_error(values)
    assert rounding_error(values.float(), terms=10000) == 100 * rounding_error(values.float())


def test_a_model_tells_its_size():
    model = nn.Sequential(nn.Linear(100, 5), nn.Linear(5, 7))
    assert rounding_error(1.0, model=model) == rounding_error(1.0, terms=100, depth=3)


def test_infinities_must_be_equal_and_give_no_scale():
    masked = torch.tensor([1.0, -torch.inf])
    assert_close(masked, masked)
    with pytest.raises(AssertionError):
        assert_close(masked, torch.tensor([1.0, 5.0]))
    with pytest.raises(AssertionError):
        assert_close(torch.tensor([1.0, torch.nan]), masked)


def test_floats_are_compared_alike():
    assert approx({"a": 1, "b": 100}) == {"a": 1 + 1e-7, "b": 100 + 1e-5}
    assert approx([1]) != [1 + 1e-3]
    assert approx(1, dtype=torch.float64) != 1 + 1e-7
