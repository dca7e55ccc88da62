"""Lines, tables and progress fit a terminal, command none, and are plain and whole in a pipe."""

import io
import subprocess
import sys

import pytest
from rich.cells import cell_len
from rich.progress import TextColumn

from cli.console import progress
from cli.console.messages import print_labelled, print_note, print_paragraph, wrap_hanging
from cli.console.progress import create_progress, show_counter, show_tokenization_progress
from cli.console.tables import print_table
from tests.cli.terminal import Terminal

LONG = "300 steps of 8 x 128 tokens: 5.2 epochs, 0.0627 tokens of text a parameter, 1.84 TFLOPs, and so on and on"


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(width, terminal):
    screen = terminal(width)
    print_labelled("plan", LONG)
    print_paragraph(LONG)
    assert max(map(cell_len, screen.lines)) <= width
    assert " ".join(screen.getvalue().split()) == f"plan {LONG} {LONG}"


def test_a_pipe_gets_a_line_for_each(capsys):
    print_labelled("plan", LONG)
    print_note("wrote a\x1bb.txt")
    print_paragraph(LONG)
    output = capsys.readouterr()
    assert output.err == f"plan    {LONG}\nwrote a␛b.txt\n"
    assert output.out == LONG + "\n"


def test_what_prints_imports_nothing_of_models_and_training():
    """Only which of several processes this is, and what errors are, both without torch."""
    code = (
        "import sys; from cli.console import messages, numbers, tables, progress, curves, heat_map\n"
        "known = {name for name in sys.modules if name.startswith(('lm.', 'torch', 'cli.training'))}\n"
        "known -= {'lm.distributed', 'lm.distributed.launcher_env', 'lm.errors'}\n"
        "sys.exit(f'{known}' if known else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr


def test_a_table_in_a_pipe_is_plain_and_aligned(capsys):
    print_table(("name", "number", "note"), [("a", "5", "x"), ("bcd", "1,234", "yz")])
    assert capsys.readouterr().out == "name  number  note\na          5  x\nbcd    1,234  yz\n"


@pytest.mark.parametrize(
    "number", ["7", "1,234.5", "-3", "+2.00", "~40", "~ 40", "12%", "1.5 MB", "2:05", "1e-3", "3/4", "–"]
)
def test_columns_of_numbers_are_aligned_right_and_others_left(capsys, number):
    print_table(("a long heading", "a long heading", ""), [(number, number, "x"), ("1", "text", "x")])
    first = capsys.readouterr().out.splitlines()[1]
    assert first == f"{number:>14}  {number:<14}  x"


def test_wide_characters_take_two_places_in_a_table(capsys):
    print_table(("이름", "number", "note"), [("한국어.txt", "5", "x"), ("a", "1,234", "고양이")])
    assert capsys.readouterr().out == "이름        number  note\n한국어.txt       5  x\na            1,234  고양이\n"


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_table_is_wider_than_the_terminal(width, terminal):
    screen = terminal(width)
    names = ("name", "size", "std error", "bits/byte", "what it is")
    print_table(
        names, [("이름", "1.5 MB", "0.1", "1.64", "forty thousand lines of plays " * 3), ("b", "–", "9", "2", "x")]
    )
    assert max(map(cell_len, screen.lines)) <= width
    assert " ".join(screen.getvalue().split()).count("plays") == 3


def test_brackets_in_a_table_on_a_terminal_are_no_markup(terminal):
    screen = terminal(80)
    print_table(("file", "n"), [("[red]a.txt", "1"), ("[/b]", "2")])
    assert "[red]a.txt" in screen.getvalue()
    assert "[/b]" in screen.getvalue()


def test_a_terminal_sees_the_number_grow(terminal):
    screen = terminal(60)
    with show_counter("scoring", "pairs") as watch:
        watch(1234)
    assert any(line.endswith("scoring: 1,234 pairs") for line in screen.lines)


def test_a_pipe_sees_the_number_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr(progress, "NOTE_SECONDS", 0.0)
    for total in (None, 5678):
        with show_counter("scoring", "pairs", total=total) as watch:
            watch(1234)
    assert capsys.readouterr().err == "scoring: 1,234 pairs\nscoring: 1,234 of 5,678 pairs\n"


def test_a_pipe_sees_nothing_of_what_is_short(capsys):
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


LINE = "plan    80 steps of 8 x 128 tokens: 1.4 epochs, 고양이가 매트 위에 앉았다 고양이가, 491 GFLOPs"


@pytest.mark.parametrize("width", [20, 30, 47, 80])
@pytest.mark.parametrize("indent", [0, 8])
def test_a_wrapped_line_loses_nothing_but_spaces(width, indent):
    lines = wrap_hanging(LINE, width=width, indent=indent).split("\n")
    assert max(map(cell_len, lines)) <= width
    assert all(line.startswith(" " * indent) for line in lines[1:])
    assert " ".join(" ".join(lines).split()) == " ".join(LINE.split())


def test_a_line_that_fits_is_left_alone():
    assert wrap_hanging("a  b ", width=5) == "a  b "


def test_a_word_longer_than_the_terminal_is_cut():
    assert wrap_hanging("x" * 25, width=10) == "\n".join(["x" * 10, "x" * 10, "x" * 5])
