"""The only source of chance in the corpus."""

from collections.abc import Sequence
from random import Random
from typing import TypeVar

Item = TypeVar("Item")


class Dice:
    """Choices that are the same on every Python.

    Only `Random.random` is used: its sequence for a seed is guaranteed across versions, that of `choice`, `shuffle` and
    `sample` is not.
    """

    def __init__(self, seed: int) -> None:
        self._roll = Random(seed).random

    def choose(self, options: Sequence[Item]) -> Item:
        """One of `options`, each as likely as any other.

        Raises:
            IndexError: `options` is empty.
        """
        return options[int(self._roll() * len(options))]
