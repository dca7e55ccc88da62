"""Numbers for people: counts, sizes and times at a glance."""

from __future__ import annotations

import math

_LONGEST_FIGURE = 1e6


def count(number: float) -> str:
    """A number at a glance: 812, 4.1k, 12.3M, 1.5G."""
    for limit, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= 0.9995 * limit:  # which three digits would show as a thousand of what is below
            return f"{number / limit:.3g}{prefix}"
    return f"{number:.3g}"


def many(number: int, noun: str) -> str:
    """How many there are of something: 1 line, 2,000 lines."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def threads(number: int) -> str:
    """How many there are: 1 thread, 2 threads."""
    return many(number, "thread")


def quantity(number: float, unit: str) -> str:
    """A number with a unit at a glance: 812 B, 12.3 MB, 4.5 GFLOPs."""
    shown = count(number)
    digits = shown.rstrip("kMGTPE")
    return f"{digits} {shown[len(digits) :]}{unit}"


def size(number: float) -> str:
    """Bytes at a glance: 812 B, 4.1 kB, 12.3 MB."""
    return quantity(number, "B")


def duration(seconds: float) -> str:
    """A time at a glance: 8.1 s, 2:05, 1:02:05."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def perplexity(nats: float) -> str:
    """The perplexity of a mean loss, as text."""
    return f"{math.exp(nats):.2f}" if nats < 20 else "over 1e8"


def figure(value: float | None, decimals: int) -> str:
    """A measured value with so many decimals, in scientific notation where it is huge; a dash where there is none."""
    if value is None:
        return "–"
    return f"{value:,.{decimals}f}" if value < _LONGEST_FIGURE else f"{value:.3g}"
