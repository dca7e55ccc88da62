"""Numbers for people."""

from __future__ import annotations

import json

import pytest

from cli.display import count, duration, json_line, perplexity, quantity, size, table


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0"), (812, "812"), (4096, "4.1k"), (124_439_808, "124M"), (1.5e9, "1.5G"), (3.3e18, "3.3E")],
)
def test_count(number, shown):
    assert count(number) == shown


def test_units():
    assert size(812) == "812 B"
    assert size(73_728) == "73.7 kB"
    assert quantity(798e6, "FLOPs") == "798 MFLOPs"


@pytest.mark.parametrize(("seconds", "shown"), [(8.14, "8.1 s"), (59.4, "59.4 s"), (125, "2:05"), (3725.4, "1:02:05")])
def test_duration(seconds, shown):
    assert duration(seconds) == shown


def test_perplexity_of_a_hopeless_model_is_no_endless_number():
    assert perplexity(1.0) == "2.72"
    assert perplexity(1000.0) == "over 1e8"


def test_a_table_in_a_pipe_is_plain_and_aligned(capsys):
    table(("name", "number", "note"), [("a", "5", "x"), ("bcd", "1,234", "yz")])
    assert capsys.readouterr().out == "name  number  note\na          5  x\nbcd    1,234  yz\n"


def test_wide_characters_take_two_places_in_a_table(capsys):
    table(("이름", "number", "note"), [("한국어.txt", "5", "x"), ("a", "1,234", "고양이")])
    assert capsys.readouterr().out == "이름        number  note\n한국어.txt       5  x\na            1,234  고양이\n"


def test_json_is_one_line_to_every_reader():
    values = {"text": "".join(map(chr, range(0xD800)))}
    assert len(json_line(values).splitlines()) == 1
    assert json.loads(json_line(values)) == values
    assert "고양이" in json_line("고양이")
