"""Help: a short screen, all options, and every setting; it does not depend on the environment."""

import re
from typing import Any

import pytest

from cli.flags.help import SHORT_HELP_LINES, summarize
from cli.flags.usage import long_flag
from cli.main import COMMANDS, run
from lm.config.options import list_options
from lm.config.run_config import SECTIONS
from tests.documented_help import commands

COLUMNS = 80
LEAVES = {path: command for path, command in commands() if not hasattr(command, "commands")}
LONG = [path for path, command in LEAVES.items() if command.common]
TRAIN = LEAVES["lm train"]


@pytest.fixture
def shown(capsys, monkeypatch):
    """Returns what a command prints at a terminal of some columns."""

    def show(path: str, *arguments: str, columns: int = COLUMNS) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        assert run([*path.split()[1:], *arguments]) == 0
        return capsys.readouterr().out

    return show


def visible_flags(command: Any) -> set[str]:
    return {long_flag(each) for each in command.params if each.param_type_name == "option" and not each.hidden}


@pytest.mark.parametrize("path", LONG)
def test_the_short_help_is_a_screen_with_a_line_for_each_common_option(shown, path):
    lines = shown(path, "-h").splitlines()
    assert len(lines) <= SHORT_HELP_LINES
    outside_of_examples = [line for line in lines if not line.startswith("    lm ")]
    assert all(len(line) <= COLUMNS for line in outside_of_examples)
    shown_flags = [match[1] for line in lines if (match := re.match(r"  (?:-\w, )?(--[a-z0-9-]+)(?: |$)", line))]
    assert shown_flags == list(LEAVES[path].common)


def test_the_short_help_of_training_has_what_most_people_type():
    assert {"--source", "--target", "--portable", "--seed", "--from", "--lora", "--resume", "--validation",
            "--learning-rate"} <= {*TRAIN.common}  # fmt: skip


@pytest.mark.parametrize("path", LEAVES)
def test_help_has_every_visible_option(shown, path):
    text = shown(path, "--help", columns=160)
    assert visible_flags(LEAVES[path]) <= {*re.findall(r"(?<![\w-])--?[a-z0-9-]+", text)}
    assert "\\[" not in text


@pytest.mark.parametrize("path", [path for path in LEAVES if path not in LONG])
def test_a_command_without_a_short_help_has_one_help(shown, path):
    assert shown(path, "-h") == shown(path, "--help")


def test_every_setting_is_listed_with_its_choices_and_default(shown):
    text = shown("lm train", "--help-settings", columns=200)
    listed = {
        line.split("=")[0].strip(): line for line in text.splitlines() if re.match(r"  [a-z]+\.[a-z0-9_]+=", line)
    }
    every = {f"{section}.{each.name}": each for section, kind in SECTIONS.items() for each in list_options(kind)}
    assert list(listed) == list(every)
    for key, option in every.items():
        assert f"{key}={option.unit}" in listed[key]
        if option.choices:
            assert f"[{'|'.join(option.choices)}]" in "".join(text.split())
        assert "".join(option.help.split()) in "".join(text.split())


def test_the_commands_are_in_groups(shown):
    text = shown("lm", "--help")
    headings = re.findall(r"^([A-Z][\w ]+):$", text, flags=re.MULTILINE)
    assert headings == ["Train", "Use", "Evaluate", "Data and exchange", "Inspect"]
    assert sorted(re.findall(r"^  ([a-z]+)  ", text, flags=re.MULTILINE)) == sorted(COMMANDS)
    assert shown("lm", "-h") == text


def test_examples_stay_as_they_are(shown):
    assert "   lm perplexity runs/novel held-out.txt " in shown("lm perplexity", "--help")


def test_the_environment_changes_no_help(shown, monkeypatch):
    pages = ("-h",), ("--help",), ("--help-settings",)
    before = [shown("lm train", *page) for page in pages]
    monkeypatch.setenv("LM_STEPS", "7")
    monkeypatch.setenv("LM_EXPERTS", "7")
    assert [shown("lm train", *page) for page in pages] == before


def test_completion_shows_the_first_sentence():
    assert summarize("Write a page. It needs nothing else. \\[default: none]") == "Write a page"
    assert len(summarize("word " * 100)) <= 70
