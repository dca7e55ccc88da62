"""Formatting of numbers for people."""

from __future__ import annotations

import math

_MAX_PLAIN_VALUE = 1e6


def format_count(number: float) -> str:
    """Format a number: 812, 4.1k, 12.3M, 1.5G."""
    for limit, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= 0.9995 * limit:  # below that, three digits would round to 1000 of the smaller unit
            return f"{number / limit:.3g}{prefix}"
    return f"{number:.3g}"


def format_number_of(number: int, noun: str) -> str:
    """Format a number of things: 1 line, 2,000 lines."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_threads(number: int) -> str:
    """Format a number of threads: 1 thread, 2 threads."""
    return format_number_of(number, "thread")


def format_quantity(number: float, unit: str) -> str:
    """Format a number with a unit: 812 B, 12.3 MB, 4.5 GFLOPs."""
    shown = format_count(number)
    digits = shown.rstrip("kMGTPE")
    return f"{digits} {shown[len(digits) :]}{unit}"


def format_bytes(number: float) -> str:
    """Format bytes: 812 B, 4.1 kB, 12.3 MB."""
    return format_quantity(number, "B")


def format_duration(seconds: float) -> str:
    """Format seconds: 8.1 s, 2:05, 1:02:05."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_trainable(trainable: int, total: int) -> str:
    """Format a number of trainable parameters among all: 98.3k trainable parameters (2.4%)."""
    return f"{format_count(trainable)} trainable parameters ({trainable / total:.1%})"


def format_perplexity(nats: float) -> str:
    """Format the perplexity of a loss in nats."""
    return f"{math.exp(nats):.2f}" if nats < 20 else "over 1e8"


def format_value(value: float | None, decimals: int) -> str:
    """Format a measured value, in scientific notation if it is huge; a dash for None."""
    if value is None:
        return "–"
    return f"{value:,.{decimals}f}" if value < _MAX_PLAIN_VALUE else f"{value:.3g}"
