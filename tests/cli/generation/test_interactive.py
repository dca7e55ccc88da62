import contextlib
import re
import sys

import pytest

from cli.generation.interactive import INTRODUCTION
from cli.main import run
from tests.cli.generation.pseudo_terminal import Terminal
from tests.cli.small_runs import make_run


@pytest.fixture(scope="module")
def bpe(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("interactive") / "bpe")


@pytest.fixture(scope="module")
def char(tmp_path_factory):
    """A run whose tokens are characters, so that texts written alternately are tokenized as they are at once."""
    return make_run(tmp_path_factory.mktemp("interactive") / "char", kind="char")


@pytest.fixture
def session(capsys, monkeypatch, tmp_path):
    """Runs a session on lines of input, without a terminal; returns its output and notes."""

    def talk(folder, *lines, flags=(), code=0) -> tuple[str, str]:
        file = tmp_path / "lines"
        file.write_bytes(b"".join(line if isinstance(line, bytes) else f"{line}\n".encode() for line in lines))
        with file.open(encoding="utf-8") as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            given = ["generate", str(folder), "--interactive", *map(str, flags)]
            assert run(given) == code
        output = capsys.readouterr()
        return output.out, output.err

    return talk


@pytest.fixture
def plain(capsys):
    """The continuation of a prompt that the command gives without a session."""

    def generate(folder, prompt, *flags) -> str:
        assert run(["generate", str(folder), prompt, "--no-echo", *map(str, flags)]) == 0
        return capsys.readouterr().out

    return generate


GREEDY = ("--greedy", "--max-tokens", 8)


def test_each_line_is_continued_from_the_whole_text(session, plain, char):
    output, notes = session(char, "The owl", "the fox", "", flags=GREEDY)
    first = plain(char, "The owl", *GREEDY)
    text = "The owl" + first  # its line end is the one between the turns
    second = plain(char, text + "the fox", *GREEDY)
    third = plain(char, text + "the fox" + second.removesuffix("\n"), *GREEDY)  # not on a new line
    assert output == first + second + third
    assert notes == ""


def test_a_backslash_joins_lines_and_two_slashes_stand_for_one(session, plain, bpe):
    for lines, prompt in (
        (["The owl\\", "saw\\", "a fox"], "The owl\nsaw\na fox"),
        (["//the"], "/the"),
        (["The owl\\"], "The owl"),
        (["Über 狐"], "Über 狐"),
    ):
        output, _ = session(bpe, *lines, flags=GREEDY)
        assert output == plain(bpe, prompt, *GREEDY)


def test_a_prompt_is_continued_first(session, plain, bpe):
    assert session(bpe, flags=("The owl", *GREEDY))[0] == plain(bpe, "The owl", *GREEDY)


def test_settings_change_on_the_fly_and_are_listed_and_explained(session, plain, bpe):
    output, notes = session(
        bpe, "/set seed 4", "/set temperature 1.5", "/set max-tokens 5", "/set top_k 7", '/set stop ["x", "\\n\\n"]',
        "/set --greedy off", "/set", "/set min-p", "The owl",
    )  # fmt: skip
    flags = ("--seed", 4, "--temperature", 1.5, "--max-tokens", 5, "--top-k", 7, "--stop", "x", "--stop", "\n\n")
    assert output == plain(bpe, "The owl", *flags)
    for line in (
        "temperature = 1.5",
        "top-k = 7",
        r'stop = "x", "\n\n"',
        "greedy = no",
        "min-p = none  Min-p: minimum ratio",
    ):
        assert line in notes.splitlines() or any(note.startswith(line) for note in notes.splitlines())
    listed = dict(re.findall(r"^  (\S+) +(.*)$", notes, re.MULTILINE))
    assert listed["max-tokens"] == "5"
    assert listed["top-p"] == "none"
    assert {"repetition-penalty", "logit-bias", "no-repeat-ngram", "seed"} <= set(listed)


def test_a_setting_can_be_unset(session, bpe):
    _, notes = session(bpe, "/set top-k 3", "/set top-k none", "/set stop x", "/set stop none", "/set stop 5")
    assert notes.splitlines() == ["top-k = 3", "top-k = none", 'stop = "x"', "stop = none", 'stop = "5"']


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/set temperature -1", "--temperature"),
        ("/set temperature hot", "--temperature"),
        ("/set temprature 1", "'temperature'"),
        ("/set max-tokens none", "--max-tokens"),
        ("/set logit-bias owl", "--logit-bias"),
        ("/set stop []", "stop = none"),
        ('/set stop ""', "--stop"),
        ("/rest", "/reset?"),
        ("/temperature 0.5", "/set temperature 0.5?"),
        ("/top_k 5", "/set top-k 5?"),
        ("/settings", "/set?"),
        ("/undo", "no continuation"),
        ("/retry", "no continuation"),
        ("/quit", "/help"),
        (b"The \xff owl\n", "UTF-8"),
    ],
)
def test_a_mistake_is_reported_and_the_session_continues(session, plain, bpe, line, said):
    if isinstance(line, bytes):
        output, notes = session(bpe, line, flags=GREEDY, code=1)
        assert (output, said in notes) == ("", True)
        return
    output, notes = session(bpe, line, "The owl", flags=GREEDY)
    assert said in notes
    assert notes.count("\n") == 1
    assert output == plain(bpe, "The owl", *GREEDY)


def test_a_line_without_tokens_is_reported(session, char):
    output, notes = session(char, "", "The Q", "/help", flags=GREEDY)
    assert output == ""
    assert "give a prompt" in notes
    assert "Q" in notes
    assert "Ctrl-C" in notes


def test_a_line_that_ends_inside_a_word_is_continued_and_kept_as_a_text(session, plain, bpe):
    """The context is what was shown, whatever tokens the line and its continuation were made of."""
    output, _ = session(bpe, "The owl ", "", flags=GREEDY)
    first, second = plain(bpe, "The owl ", *GREEDY), output.removeprefix(plain(bpe, "The owl ", *GREEDY))
    assert output.startswith(first)
    assert second == plain(bpe, "The owl " + first.removesuffix("\n"), "--no-token-healing", *GREEDY)


def test_reset_clears_the_text_and_restarts_the_seed(session, plain, bpe):
    flags = ("--seed", 5, "--max-tokens", 8)
    output, notes = session(bpe, "The owl", "/reset", "The owl", flags=flags)
    assert output == 2 * plain(bpe, "The owl", *flags)
    assert "cleared" in notes


def test_undo_removes_a_line_and_its_continuation(session, plain, char):
    output, notes = session(char, "The owl", "the fox", "/undo", "by the mill", "/undo", "/undo", "The", flags=GREEDY)
    first = plain(char, "The owl", *GREEDY)
    fox, mill = (plain(char, f"The owl{first}{line}", *GREEDY) for line in ("the fox", "by the mill"))
    assert output == first + fox + mill + plain(char, "The", *GREEDY)
    assert notes.count("undone") == 3


def test_retry_samples_the_last_continuation_again(session, plain, char):
    flags = ("--seed", 5, "--max-tokens", 8)
    output, _ = session(char, "The owl", "/retry", flags=flags)
    first = plain(char, "The owl", *flags)
    again = output.removeprefix(first)
    assert output != first + first
    greedy, _ = session(char, "The owl", "/retry", "the fox", flags=GREEDY)
    one = plain(char, "The owl", *GREEDY)
    assert greedy == one + one + plain(char, f"The owl{one}the fox", *GREEDY)
    assert len(again) >= 8


def test_a_stop_string_is_no_part_of_the_text(session, plain, char):
    whole = plain(char, "The owl", *GREEDY)
    begun = whole[: whole.index(whole[4:6])]
    flags = (*GREEDY, "--stop", whole[4:6])
    output, _ = session(char, "The owl", "the fox", flags=flags)
    first = begun if begun.endswith("\n") else begun + "\n"
    assert output == first + plain(char, "The owl" + first + "the fox", *flags)


def test_stats_come_after_each_text_if_asked_for(session, bpe):
    _, notes = session(bpe, "The", "the", flags=(*GREEDY, "--stats"))
    assert [line.partition(",")[0] for line in notes.splitlines()] == ["8 tokens"] * 2


def test_on_a_terminal_ctrl_c_stops_the_text_and_ctrl_d_the_session(bpe):
    with contextlib.closing(
        Terminal("generate", bpe, "--interactive", "--max-tokens", 10**9, "--logit-bias", "0=-inf")
    ) as terminal:
        terminal.wait_for(re.escape(INTRODUCTION))
        terminal.wait_for("> ")
        terminal.type("The owl\n")
        terminal.wait_for("The owl\n")
        terminal.wait_for("(?s).{40}")
        terminal.interrupt()
        terminal.wait_for("\n> ")
        terminal.type("half a line")
        terminal.wait_for("half a line")
        terminal.interrupt_waiting()
        terminal.wait_for("\n> ")
        terminal.type("/set max-tokens 3\n")
        terminal.wait_for("max-tokens = 3")
        terminal.wait_for("> ")
        terminal.type("one\\\ntwo\n")
        terminal.wait_for(r"\. ")
        terminal.wait_for("two\n")
        terminal.wait_for("\n> ")
        terminal.type("\x1b[A")  # up: the line before
        terminal.wait_for("two")
        terminal.type("\n")
        terminal.wait_for("\n> ")
        terminal.type("\x04")
        assert terminal.process.wait(timeout=900) == 0
