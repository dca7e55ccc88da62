"""Cases of which the default tests run the first, and `-m slow` the rest."""

from collections.abc import Iterable

import pytest


def slow_after(count: int, values: Iterable[object]) -> list[object]:
    """Return values for `parametrize`, those after so many marked slow."""
    return [value if at < count else pytest.param(value, marks=pytest.mark.slow) for at, value in enumerate(values)]
