"""`lm chat`: turns, commands and the context."""

import contextlib
import json
import re
import sys

import pytest

from cli.generating import INTRODUCTION
from cli.main import run
from tests.cli.pseudo_terminal import Terminal
from tests.cli.small_runs import make_run, make_tokenizer

SHAPE = ["--d-model", "32", "--n-layers", "1", "--n-heads", "2", "--context", "128", "--tokenizer", "byte"]
GREEDY = ("--temperature", "0", "--max-tokens", 6)


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    """A run trained on conversations."""
    folder = tmp_path_factory.mktemp("chats")
    turns = [{"role": "user", "content": "The owl"}, {"role": "assistant", "content": "It sat."}]
    (folder / "chats.jsonl").write_text((json.dumps({"messages": turns * 2}) + "\n") * 20)
    command = ["train", str(folder / "chats.jsonl"), "-o", str(folder / "run"), "--steps", "40", "--validation", "0"]
    assert run([*command, "--learning-rate", "0.01", *SHAPE]) == 0
    return folder / "run"


@pytest.fixture
def session(capsys, monkeypatch, tmp_path):
    """Runs a chat on lines of input, without a terminal; returns its output and notes."""

    def talk(folder, *lines, flags=GREEDY, code=0) -> tuple[str, str]:
        file = tmp_path / "lines"
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        with file.open(encoding="utf-8") as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            assert run(["chat", str(folder), *map(str, flags)]) == code
        output = capsys.readouterr()
        return output.out, output.err

    return talk


def read_saved(path) -> list[list[tuple[str, str]]]:
    lines = [json.loads(line)["messages"] for line in path.read_text().splitlines()]
    return [[(each["role"], each["content"]) for each in line] for line in lines]


def test_each_line_without_a_terminal_is_a_turn(session, chats, tmp_path):
    saved = tmp_path / "saved.jsonl"
    lines = f"/save {saved}", "The owl", "", "/quit", "The fox\\", "ran.", f"/save {saved}", "/exit", "never read"
    output, notes = session(
        chats, *lines, flags=[*GREEDY, "--set", "sampling.logit_bias=<|end|>=-inf", "--system", "Be brief."]
    )
    (conversation,) = read_saved(saved)
    said = [content for role, content in conversation if role == "user"]
    assert said == ["The owl", "The fox\nran."]
    assert conversation[0] == ("system", "Be brief.")
    assert output
    assert "/quit: see /help" in notes
    assert "nothing to save" in notes


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """A run whose replies don't end before the test: those of the other runs end with their short context."""
    folder = tmp_path_factory.mktemp("endless") / "run"
    tokenizer = make_tokenizer("bpe").with_chat_template()
    return make_run(folder, tokenizer=tokenizer, context_length=1_000_000)


ENDLESS = ("--max-tokens", 10**9, "--set", "sampling.ignore_eos=true")


@pytest.mark.medium
def test_on_a_terminal_ctrl_c_stops_the_reply_and_ctrl_d_the_chat(endless, tmp_path):
    saved = tmp_path / "saved.jsonl"
    with contextlib.closing(Terminal("chat", endless, *ENDLESS)) as terminal:
        terminal.wait_for(re.escape(INTRODUCTION))
        terminal.wait_for("> ")
        terminal.type("The owl\\\nsaw\n")
        terminal.wait_for(r"\. saw\n")
        terminal.wait_for("(?s).{40}")
        terminal.interrupt()
        terminal.wait_for("\n> ")
        terminal.type(f"/save {saved}\n")
        terminal.wait_for("saved to")
        terminal.wait_for("\n> ")
        terminal.type("\x04")
        assert terminal.process.wait(timeout=900) == 0
    ((question, reply),) = read_saved(saved)
    assert question == ("user", "The owl\nsaw")
    assert reply[0] == "assistant"
    assert reply[1]
