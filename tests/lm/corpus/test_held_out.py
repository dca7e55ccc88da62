"""Where a corpus is divided, and below which hashes."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from lm.corpus.corpus import compute_hash_bound, hash_text, parse_held_out_fraction, split_at
from lm.errors import UsageError
from lm.text.documents import TextPiece


@pytest.mark.parametrize(
    ("boundary", "parts"),
    [(1, ["a", "éé€𝄞"]), (2, ["aé", "é€𝄞"]), (3, ["aé", "é€𝄞"]), (4, ["aéé", "€𝄞"]), (6, ["aéé€", "𝄞"]),
     (7, ["aéé€", "𝄞"]), (8, ["aéé€", "𝄞"])],
)  # fmt: skip
def test_a_document_begins_at_the_first_character_from_the_boundary_on(boundary, parts):
    """Of one, two, two, three and four bytes."""
    found = list(split_at([TextPiece("aéé€𝄞", starts_document=False)], boundary))
    assert found == [TextPiece(parts[0], starts_document=False), TextPiece(parts[1], starts_document=True)]


def test_a_boundary_between_two_fragments_begins_a_document_with_the_second():
    given = [TextPiece("ab", starts_document=False), TextPiece("cd", starts_document=False)]
    for boundary, expected in ((0, [True, False]), (2, [False, True]), (4, [False, False])):
        assert [found.starts_document for found in split_at(given, boundary)] == expected


@pytest.mark.parametrize(
    ("validation", "fraction"),
    [("0.1", Fraction(1, 10)), ("1/3", Fraction(1, 3)), ("0", Fraction(0)), ("held.txt", None), ("1/0", None)],
)
def test_a_fraction_is_a_number_and_anything_else_names_files(validation, fraction):
    assert parse_held_out_fraction(validation) == fraction


@pytest.mark.parametrize("validation", ["1", "1.5", "-0.1"])
def test_a_fraction_out_of_range_is_refused(validation):
    with pytest.raises(UsageError, match="must be a fraction from 0 to below 1, or files"):
        parse_held_out_fraction(validation)


def test_hashes_below_the_bound_are_that_share_of_texts():
    hashes = [hash_text(str(number)) for number in range(10_000)]
    assert len(set(hashes)) == 10_000
    for fraction in (Fraction(0), Fraction(1, 10), Fraction(1, 3), Fraction(9, 10)):
        share = sum(found < compute_hash_bound(fraction) for found in hashes) / len(hashes)
        assert share == pytest.approx(float(fraction), abs=4 * math.sqrt(0.25 / len(hashes)))


@pytest.mark.parametrize(("count", "held_out"), [(0, 0), (1, 0), (2, 1), (10, 1), (19, 1), (20, 2), (99, 9)])
def test_of_few_texts_the_share_is_exact_and_at_least_one(count, held_out):
    hashes = [hash_text(str(number)) for number in range(count)]
    assert sum(found < compute_hash_bound(Fraction(1, 10), hashes) for found in hashes) == held_out
    assert compute_hash_bound(Fraction(0), hashes) == 0
