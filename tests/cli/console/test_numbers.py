"""Numbers for people."""

import math

import pytest

from cli.console.numbers import (
    format_bytes,
    format_count,
    format_duration,
    format_number_of,
    format_perplexity,
    format_quantity,
    format_threads,
    format_trainable,
    format_value,
)


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0"), (812, "812"), (4096, "4.1k"), (124_439_808, "124M"), (1.5e9, "1.5G"), (3.3e18, "3.3E"),
        (999_700_000, "1G"), (999_400, "999k"), (999.4, "999"), (999.5, "1k"), (999_500, "1M"), (1e12, "1T"),
        (1e15, "1P"), (-4096, "-4.1k"), (0.123456, "0.123"),
    ],
)  # fmt: skip
def test_count(number, shown):
    assert format_count(number) == shown


def test_units():
    assert format_bytes(812) == "812 B"
    assert format_bytes(73_728) == "73.7 kB"
    assert format_quantity(798e6, "FLOPs") == "798 MFLOPs"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (8.14, "8.1 s"),
        (59.4, "59.4 s"),
        (60, "1:00"),
        (125, "2:05"),
        (3599.4, "59:59"),
        (3599.6, "1:00:00"),
        (3725.4, "1:02:05"),
        (36_000, "10:00:00"),
    ],
)
def test_duration(seconds, shown):
    assert format_duration(seconds) == shown


def test_perplexity_of_a_hopeless_model_is_no_endless_number():
    assert format_perplexity(1.0) == "2.72"
    assert format_perplexity(19.99) == f"{math.exp(19.99):.2f}"
    assert [format_perplexity(nats) for nats in (20.0, 1000.0)] == ["over 1e8"] * 2


def test_trainable_parameters_are_a_fraction_of_all():
    assert format_trainable(98_304, 4_096_000) == "98.3k trainable parameters (2.4%)"


@pytest.mark.parametrize(
    ("value", "decimals", "shown"),
    [(None, 2, "–"), (0.12345, 4, "0.1235"), (12_345.6, 1, "12,345.6"), (999_999.0, 0, "999,999"), (1e6, 3, "1e+06")],
)
def test_a_figure_stays_short(value, decimals, shown):
    assert format_value(value, decimals) == shown


def test_one_thread_and_several():
    assert [format_threads(number) for number in (1, 2)] == ["1 thread", "2 threads"]
    assert [format_number_of(number, "line") for number in (0, 1, 2000)] == ["0 lines", "1 line", "2,000 lines"]
