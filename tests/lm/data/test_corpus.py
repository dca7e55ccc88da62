"""Where a corpus is divided."""

from __future__ import annotations

import pytest

from lm.data.corpus import _divided
from lm.text.documents import Fragment


@pytest.mark.parametrize(
    ("boundary", "parts"),
    [(1, ["a", "éé€𝄞"]), (2, ["aé", "é€𝄞"]), (3, ["aé", "é€𝄞"]), (4, ["aéé", "€𝄞"]), (6, ["aéé€", "𝄞"]),
     (7, ["aéé€", "𝄞"]), (8, ["aéé€", "𝄞"])],
)  # fmt: skip
def test_a_document_begins_at_the_first_character_from_the_boundary_on(boundary, parts):
    """Of one, two, two, three and four bytes."""
    found = list(_divided([Fragment("aéé€𝄞", starts_document=False)], boundary))
    assert found == [Fragment(parts[0], starts_document=False), Fragment(parts[1], starts_document=True)]


def test_a_boundary_between_two_fragments_begins_a_document_with_the_second():
    given = [Fragment("ab", starts_document=False), Fragment("cd", starts_document=False)]
    for boundary, expected in ((0, [True, False]), (2, [False, True]), (4, [False, False])):
        assert [found.starts_document for found in _divided(given, boundary)] == expected
