from __future__ import annotations

import random

import pytest

from lm.text.parallel import find_misalignment
from tests.lm.corpus.parallel_text import lines

SOURCES, TARGETS = lines(3000)
LENGTHS = [len(line) for line in SOURCES], [len(line) for line in TARGETS]


def without(lengths: list[int], places: set[int]) -> list[int]:
    return [length for place, length in enumerate(lengths) if place not in places]


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("missing", [{1500}, {40}, {2900}, {700, 2000}, {1000, 1001, 1002}, set(range(800, 840))])
def test_the_first_missing_line_is_found(side: int, missing: set[int]) -> None:
    found = find_misalignment(LENGTHS[1 - side], without(LENGTHS[side], missing))
    assert abs(found - min(missing)) <= 8


def test_many_missing_lines() -> None:
    missing = set(random.Random(0).sample(range(3000), 12))
    assert abs(find_misalignment(LENGTHS[0], without(LENGTHS[1], missing)) - min(missing)) <= 8


@pytest.mark.parametrize("kept", [2990, 1000, 0])
def test_a_text_that_ends_early(kept: int) -> None:
    assert find_misalignment(LENGTHS[0], LENGTHS[1][:kept]) == kept


def test_a_blank_line_too_many() -> None:
    longer = [*LENGTHS[0][:600], 0, *LENGTHS[0][600:]]
    assert abs(find_misalignment(longer, LENGTHS[1]) - 600) <= 8
