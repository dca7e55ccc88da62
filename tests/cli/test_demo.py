"""The demo runs the commands that it shows, and stops where one fails."""

import shlex
from pathlib import Path

import pytest
import typer

import corpora
from cli.demo import demo
from cli.flags.options import CommandLine
from lm.errors import UsageError


def context(commands: list[list[str]], *, failing: str | None = None) -> typer.Context:
    """A context whose command line is only written down."""

    def run(arguments) -> int:
        commands.append(list(arguments))
        return 3 if arguments[0] == failing else 0

    return type("Context", (), {"obj": CommandLine(("demo",), run, 0.0)})()


def test_what_is_shown_is_what_runs(tmp_path, capsys):
    commands: list[list[str]] = []
    demo(context(commands), out=tmp_path / "demo", steps=3)
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("$ lm ")]
    assert shown == [f"$ lm {shlex.join(command)}" for command in commands]
    assert {command[0] for command in commands} == {"train", "perplexity", "generate", "info", "evaluate", "attention"}
    assert all("--steps" in command for command in commands if command[0] == "train")


@pytest.mark.parametrize(("columns", "width"), [(60, 60), (100, 100), (200, 100)])
def test_each_command_is_explained_in_lines_that_fit_the_terminal_and_are_read_easily(
    tmp_path, capsys, monkeypatch, columns, width
):
    monkeypatch.setenv("COLUMNS", str(columns))
    demo(context([]), out=tmp_path / "demo", steps=3)
    lines = capsys.readouterr().out.splitlines()
    text = [line for line in lines if not line.startswith(("$ lm ", "  $ lm "))]
    assert width - 15 < max(map(len, text)) <= width
    assert "\nA language model learns from text alone. A " in "\n".join(["", *text])
    assert [line for line in lines if line.startswith("  $ ")][1] == "  $ lm train my-book.txt -o runs/mine"
    assert all(lines[index - 1] == "" for index, line in enumerate(lines) if line.startswith("$ lm train"))


def test_attention_is_shown_of_the_first_held_out_pair(tmp_path, capsys):
    commands: list[list[str]] = []
    demo(context(commands), out=tmp_path / "demo", steps=None)
    first = [
        corpora.path(f"parallel/heldout.{side}").read_text(encoding="utf-8").splitlines()[0] for side in ("en", "de")
    ]
    assert commands[-1] == ["attention", str(tmp_path / "demo-german"), first[0], "--target", first[1]]
    sizes = [command[command.index("-o") + 2 :] for command in commands if command[0] == "train"]
    assert sizes == [["--budget", "80s"], ["--budget", "110s"]]


def test_a_folder_without_a_name_cannot_have_a_second_one_beside_it(tmp_path):
    with pytest.raises(UsageError, match="name a new folder"):
        demo(context([]), out=Path("/"), steps=3)


def test_a_command_that_fails_ends_it(tmp_path):
    commands: list[list[str]] = []
    with pytest.raises(typer.Exit) as ended:
        demo(context(commands, failing="perplexity"), out=tmp_path / "demo", steps=None)
    assert ended.value.exit_code == 3
    assert [command[0] for command in commands] == ["train", "perplexity"]
    assert "--budget" in commands[0]
