"""Numbers for people."""

from __future__ import annotations

import io
import re
import sys

import pytest
from rich.cells import cell_len

from cli.console.messages import fact, paragraph
from cli.console.numbers import count, duration, perplexity, quantity, size
from cli.console.tables import table
from cli.training.display import TrainingDisplay
from lm.training.events import Evaluation, Sample, Step

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        """What was written, without colours and movements; what is drawn again and again, each time."""
        return re.split(r"[\r\n]+", ESCAPES.sub("", self.getvalue()))


@pytest.fixture
def terminal(monkeypatch):
    def open_terminal(width: int) -> Terminal:
        for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLORTERM"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setenv("COLUMNS", str(width))
        made = Terminal()
        monkeypatch.setattr(sys, "stdout", made)
        monkeypatch.setattr(sys, "stderr", made)
        return made

    return open_terminal


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


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_nothing_is_wider_than_the_terminal(width, terminal):
    screen = terminal(width)
    names = ("name", "size", "std error", "bits/byte", "what it is")
    table(names, [("이름", "1.5 MB", "0.1", "1.64", "forty thousand lines of plays " * 3), ("b", "–", "9", "2", "x")])
    fact("plan", "300 steps of 8 x 128 tokens: 5.2 epochs, 0.0627 tokens of text a parameter, 1.84 TFLOPs")
    paragraph("perplexity per token (1,024 in the vocabulary), context 128, stride 64; 2,110 documents")
    assert max(map(cell_len, screen.lines)) <= width
    assert " ".join(screen.getvalue().split()).count("plays") == 3


def test_brackets_in_a_table_on_a_terminal_are_no_markup(terminal):
    screen = terminal(80)
    table(("file", "n"), [("[red]a.txt", "1"), ("[/b]", "2")])
    assert "[red]a.txt" in screen.getvalue()
    assert "[/b]" in screen.getvalue()


def test_a_sample_shows_where_the_model_began(capsys):
    display = TrainingDisplay(steps=10, first_step=0, matrix_rate=1e11)
    display.show(Sample(10, "고양이는", " 가\n\n서둘러"))
    display.show(Sample(10, "Hi\nthere", "ed"))
    lines = [line.partition("10  ")[2] for line in capsys.readouterr().err.splitlines()]
    assert lines == ['"고양이는" goes on " 가 서둘러"', '"Hi there" goes on "ed"']


@pytest.mark.parametrize("width", [60, 80, 200])
def test_training_fits_the_terminal_with_room_for_an_echoed_key(width, terminal):
    screen = terminal(width)
    with TrainingDisplay(steps=20_000, first_step=0, matrix_rate=1e11) as display:
        for step in range(1, 40):
            display.show(Step(step, loss=5.0 / step, learning_rate=1e-3, tokens=4096, flops=1e9, seconds=0.1,
                              gradient_norm=1.0))  # fmt: skip
        display.progress.refresh()
        drawn = [line for line in screen.lines if "/20,000" in line]
        assert drawn
        assert max(map(cell_len, drawn)) <= width - len("^C")
        assert "left" in drawn[-1]
        assert "…" not in drawn[-1]
        display.show(Sample(40, "Once", "[/b] 고양이 :smile: \x1b[2J and then on and on " * 5))
        display.show(Evaluation(40, loss=1.5, bits_per_byte=0.7, tokens=9, seconds=1.0, is_best=True, bleu=21.5))
    assert max(map(cell_len, screen.lines)) <= width
    assert screen.getvalue().count("[/b]") == 5
    assert screen.getvalue().count(":smile:") == 5
    assert "\x1b[2J" not in screen.getvalue()
    assert "BLEU 21.50" in " ".join(" ".join(screen.lines).split())
