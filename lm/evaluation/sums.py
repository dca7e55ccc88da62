"""Sums first, one division: figures that are sums over parts, and can be summed again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self


class Sums:
    """A dataclass whose fields are all sums, starting at zero."""

    @classmethod
    def total(cls, parts: Iterable[Self]) -> Self:
        """The sums over several parts, such as files."""
        total = cls()
        for part in parts:
            for name, value in vars(part).items():
                setattr(total, name, getattr(total, name) + value)
        return total
