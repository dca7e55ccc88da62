"""Groups end with the item that makes them large enough."""

from __future__ import annotations

import pytest

from lm.text.documents import group_by_size


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
def test_groups_of_five_characters(sizes, groups):
    assert list(group_by_size(sizes, lambda size: size, limit=5)) == groups
