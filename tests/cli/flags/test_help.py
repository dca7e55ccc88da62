"""Help: a short screen, all options in groups, and every setting; it does not depend on the environment."""

import re
from typing import Any

import pytest

from cli.flags import help as help_pages
from cli.flags.help import SHORT_HELP_LINES, group_names, summarize
from cli.main import COMMANDS, run
from lm.config.options import list_options
from lm.config.run_config import SECTIONS
from tests.documented_help import commands

COLUMNS = 80
PATHS = [path for path, _ in commands()]
LEAVES = {path: command for path, command in commands() if not hasattr(command, "commands")}
LONG = [path for path, command in LEAVES.items() if command.common]
TRAIN = LEAVES["lm train"]
MOST_LINES = 3
"""Lines of an option at 80 columns, its choices among them."""


@pytest.fixture
def shown(capsys, monkeypatch):
    """Returns what a command prints at a terminal of some columns."""

    def show(path: str, *arguments: str, columns: int = COLUMNS) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        assert run([*path.split()[1:], *arguments]) == 0
        return capsys.readouterr().out

    return show


def described(text: str) -> dict[str, list[str]]:
    """The long flags of a help page, from its first heading on, each with the lines of its option."""
    found: dict[str, list[str]] = {}
    flag = None
    lines = text.splitlines()
    for line in lines[next(place for place, line in enumerate(lines) if re.fullmatch(r"[A-Z][\w ]*:", line)) :]:
        if term := re.match(r"  (?:-\w, )?--(?:\[no-\])?([a-z0-9-]+)", line):
            flag = "--" + term[1]
            assert flag not in found
            found[flag] = [line]
        elif flag and line.startswith("     "):
            found[flag].append(line)
        else:
            flag = None
    return found


def visible_flags(command: Any) -> set[str]:
    flags = {
        help_pages.long_flag(each) for each in command.params if each.param_type_name == "option" and not each.hidden
    }
    return flags - {"--help-group", "--help-settings"}


@pytest.mark.parametrize("path", PATHS)
def test_the_short_help_is_a_screen(shown, path):
    lines = shown(path, "-h").splitlines()
    assert len(lines) <= SHORT_HELP_LINES
    outside_of_examples = [line for line in lines if not line.startswith("    lm ")]
    assert all(len(line) <= COLUMNS for line in outside_of_examples)


@pytest.mark.parametrize("path", LEAVES)
def test_help_has_every_visible_option_once_and_each_is_short(shown, path):
    options = described(shown(path, "--help"))
    assert set(options) == visible_flags(LEAVES[path])
    for flag, lines in options.items():
        assert len(lines) <= MOST_LINES, flag
        assert all(len(line) <= COLUMNS for line in lines), flag


def test_most_options_of_training_take_one_line(shown):
    options = described(shown("lm train", "--help"))
    assert sum(len(lines) == 1 for lines in options.values()) > len(options) / 2


@pytest.mark.parametrize("path", [path for path in LEAVES if path not in LONG])
def test_a_command_without_a_short_help_has_a_help_of_one_screen(shown, path):
    assert len(shown(path, "--help").splitlines()) <= SHORT_HELP_LINES
    assert shown(path, "-h") == shown(path, "--help")


@pytest.mark.parametrize("path", LONG)
def test_common_options_come_first_and_the_groups_have_the_others(shown, path):
    command = LEAVES[path]
    options = list(described(shown(path, "--help")))
    common = [*command.common, "--help"]
    assert options[: len(common)] == common
    assert list(described(shown(path, "-h"))) == common
    first, *others = [list(described(shown(path, "--help-group", name))) for name in group_names(command)]
    assert first == common
    in_groups = [flag for group in others for flag in group]
    assert len(in_groups) == len(set(in_groups))
    assert [flag for flag in in_groups if flag not in common] == options[len(common) :]


def test_a_group_has_its_common_options_too(shown):
    assert {"--steps", "--epochs", "--tokens", "--budget", "--batch-size"} <= {
        *described(shown("lm train", "--help-group", "training"))
    }


@pytest.mark.parametrize("path", LONG)
def test_the_short_help_names_the_groups(shown, path):
    said = " ".join(shown(path, "-h").split())
    names = [name for name in group_names(LEAVES[path]) if name != "common"]
    assert not names or f"the options of one group: {', '.join(names)}." in said


def test_translation_and_trees_come_last(shown):
    headings = re.findall(r"^([A-Z]\w+)(?: options)?:$", shown("lm train", "--help"), flags=re.MULTILINE)
    assert headings[:2] == ["Arguments", "Common"]
    assert headings[-2:] == ["Translation", "Syntax"]


def test_an_unknown_group_suggests_one_and_lists_all(capsys):
    assert run(["train", "--help-group", "modle"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("lm: no group 'modle' (did you mean 'model'?); groups: common, model, ")
    assert said.count("\n") == 1


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


def test_every_setting_has_a_visible_flag_or_is_shown_with_its_group(shown):
    flags = visible_flags(TRAIN)
    groups = "".join(shown("lm train", "--help-group", name, columns=200) for name in group_names(TRAIN))
    for section, kind in SECTIONS.items():
        for each in list_options(kind):
            assert (each.flag in flags) is not each.is_advanced
            assert (f"  {section}.{each.name}=" in groups) is each.is_advanced


def test_the_commands_are_in_groups(shown):
    text = shown("lm", "--help")
    headings = re.findall(r"^([A-Z][\w ]+):$", text, flags=re.MULTILINE)
    assert headings == ["Train", "Use", "Evaluate", "Data and exchange", "Inspect"]
    assert sorted(re.findall(r"^  ([a-z]+)  ", text, flags=re.MULTILINE)) == sorted(COMMANDS)
    assert shown("lm", "-h") == text


@pytest.mark.parametrize("path", PATHS)
def test_help_fits_a_narrow_terminal(shown, path):
    for line in shown(path, "--help", columns=60).splitlines():
        assert len(line) <= 60 or line.startswith("    lm ") or "lm " in line


def test_paragraphs_and_examples_stay_as_they_are(shown):
    assert "    lm perplexity runs/novel held-out.txt\n" in shown("lm perplexity", "--help")


def test_the_environment_changes_no_help(shown, monkeypatch):
    pages = ("-h",), ("--help",), ("--help-settings",)
    before = [shown("lm train", *page) for page in pages]
    monkeypatch.setenv("LM_STEPS", "7")
    monkeypatch.setenv("LM_EXPERTS", "7")
    assert [shown("lm train", *page) for page in pages] == before


def test_completion_shows_the_first_sentence():
    assert summarize("Write a page. It needs nothing else. [default: none]") == "Write a page"
    assert summarize("Tables [model] and so on.") == "Tables \\[model] and so on"
    assert len(summarize("word " * 100)) <= 70
