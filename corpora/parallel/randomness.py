"""Random choices from `random.Random.random` alone, whose sequence never changes between Python versions."""

from collections.abc import Sequence
from random import Random
from typing import TypeVar

Item = TypeVar("Item")


class RandomChoices:
    """A seeded source of choices, the same on every Python and every machine."""

    def __init__(self, seed: int) -> None:
        self.uniform = Random(seed).random

    def chance(self, probability: float) -> bool:
        """Return True with the given probability."""
        return self.uniform() < probability

    def choice(self, items: Sequence[Item]) -> Item:
        """Return one of `items`, each as likely as any other."""
        return items[int(self.uniform() * len(items))]

    def weighted(self, items: Sequence[tuple[int, Item]]) -> Item:
        """Return one of (weight, item) with a probability in proportion to its weight."""
        point = self.uniform() * sum(weight for weight, _ in items)
        for weight, item in items:
            point -= weight
            if point < 0:
                return item
        return items[-1][1]
