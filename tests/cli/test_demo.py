"""The demo runs the commands that it shows, and stops where one fails."""

import shlex

import pytest
import typer

from cli.demo import demo
from cli.options import CommandLine


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


def test_a_command_that_fails_ends_it(tmp_path):
    commands: list[list[str]] = []
    with pytest.raises(typer.Exit) as ended:
        demo(context(commands, failing="perplexity"), out=tmp_path / "demo", steps=None)
    assert ended.value.exit_code == 3
    assert [command[0] for command in commands] == ["train", "perplexity"]
    assert "--budget" in commands[0]
