"""Progress is drawn on a terminal alone, and leaves stdout alone."""

from __future__ import annotations

import io
import sys

from rich.progress import TextColumn

from cli.console.progress import create_progress, show_counter, show_tokenization_progress
from tests.cli.terminal import Terminal


def test_a_terminal_sees_the_number_grow(terminal):
    screen = terminal(60)
    with show_counter("scoring", "pairs") as watch:
        watch(1234)
    assert any(line.endswith("scoring: 1,234 pairs") for line in screen.lines)


def test_a_pipe_sees_nothing(capsys):
    with show_counter("scoring", "pairs") as watch:
        watch(1234)
    with show_tokenization_progress() as watch:
        assert watch is None
    output = capsys.readouterr()
    assert output.out == output.err == ""


def test_what_is_printed_meanwhile_reaches_a_pipe(terminal, monkeypatch):
    screen = terminal(60)
    monkeypatch.setattr(sys, "stdout", piped := io.StringIO())
    with create_progress(TextColumn("working")) as bar:
        bar.add_task("")
        print("data")
    assert piped.getvalue() == "data\n"
    assert "data" not in screen.getvalue()


def test_a_terminal_has_what_is_printed_above_the_bar(terminal):
    screen = terminal(60)
    with create_progress(TextColumn("working")) as bar:
        bar.add_task("")
        print("data")
    assert "data" in screen.lines


def test_room_is_left_for_an_echoed_key(terminal):
    screen = terminal(40)
    with create_progress(TextColumn("x" * 100)) as bar:
        bar.add_task("")
    assert isinstance(screen, Terminal)
    assert max(map(len, screen.lines)) <= 40 - len("^C")
