"""Sums of parts are the sums of the whole."""

from __future__ import annotations

from dataclasses import dataclass

from lm.evaluation.perplexity import Sums


@dataclass
class Counts(Sums):
    words: int = 0
    nats: float = 0.0


def test_the_total_adds_up_each_field_and_leaves_the_parts_alone():
    parts = [Counts(1, 0.5), Counts(2, 0.25), Counts(4, 0.125)]
    assert Counts.total(iter(parts)) == Counts(7, 0.875)
    assert parts[0] == Counts(1, 0.5)


def test_nothing_adds_up_to_nothing():
    assert Counts.total([]) == Counts()
