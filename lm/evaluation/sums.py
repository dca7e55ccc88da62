"""A class of sums that can be added up; what follows from the sums, such as perplexity, is said by those that are."""

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
