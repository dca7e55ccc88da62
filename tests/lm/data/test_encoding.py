"""Groups end with the item that makes them large enough."""

from __future__ import annotations

import pytest

from lm.data import encoding
from lm.data.encoding import grouped


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([], []),
        ([4], [[4]]),
        ([5, 5], [[5], [5]]),
        ([4, 1, 4, 2, 1], [[4, 1], [4, 2], [1]]),
        ([9, 1, 1, 1, 1], [[9], [1, 1, 1, 1]]),
        ([1, 1, 1, 1, 1], [[1, 1, 1, 1, 1]]),
    ],
)
def test_groups_of_five_characters(monkeypatch, sizes, groups):
    monkeypatch.setattr(encoding, "GROUP_CHARACTERS", 5)
    assert list(grouped(sizes, lambda size: size)) == groups
