"""Rotary embeddings as multiplication by complex numbers."""

import torch

from lm.model.positions import Rotation, rotary_table
from tests.tolerances import approx


def _plain(width: int, base: float) -> torch.Tensor:
    return torch.tensor([base ** (-2 * i / width) for i in range(width // 2)], dtype=torch.float64)


def test_rotation_equals_complex_multiplication():
    rotation = Rotation(*rotary_table(7, _plain(8, 100.0))[3:].unbind(1))
    x = torch.randn(2, 2, 4, 8)
    turned = rotation(x)
    for offset in range(4):
        pairs = torch.complex(x[:, :, offset, :4], x[:, :, offset, 4:])
        angles = torch.tensor([(3 + offset) * 100.0 ** (-2 * i / 8) for i in range(4)])
        expected = pairs * torch.polar(torch.ones(4), angles)
        torch.testing.assert_close(turned[:, :, offset, :4], expected.real)
        torch.testing.assert_close(turned[:, :, offset, 4:], expected.imag)


def test_rotary_scores_depend_on_distance_alone():
    angles = rotary_table(200, _plain(16, 10_000.0))
    query, key = torch.randn(1, 1, 1, 16), torch.randn(1, 1, 1, 16)

    def score(at: int, seen: int) -> float:
        turned = [Rotation(*angles[place, None].unbind(1))(x) for place, x in ((at, query), (seen, key))]
        return float((turned[0] * turned[1]).sum())

    added = (query * key).abs().sum()  # the terms of the sum may cancel, their rounding errors do not
    assert score(9, 4) == approx(score(105, 100), terms=16, depth=2, scale=added)
    assert score(9, 4) != approx(score(9, 5), terms=16, depth=2, scale=added)


def test_the_gradient_equals_autograd():
    rotation = Rotation(*rotary_table(5, _plain(8, 100.0)).double().unbind(1))
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(rotation, x)


def test_a_tiled_rotation_repeats_for_each_sequence():
    rotation, x = Rotation(*rotary_table(5, _plain(8, 100.0)).unbind(1)), torch.randn(2, 3, 5, 8)
    both = rotation.tile(2)(torch.cat((x, x), dim=2))
    assert torch.equal(both, torch.cat((rotation(x), rotation(x)), dim=2))


def test_partial_rotation_leaves_other_features_unchanged():
    rotation, x = Rotation(*rotary_table(5, _plain(6, 100.0)).unbind(1)), torch.randn(2, 3, 5, 16)
    turned = rotation(x)
    assert torch.equal(turned[..., :6], rotation(x[..., :6]))
    assert torch.equal(turned[..., 6:], x[..., 6:])
