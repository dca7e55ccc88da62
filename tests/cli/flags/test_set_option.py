"""`--set TABLE.KEY=VALUE` does what the flag of the setting does, for every setting."""

import itertools
import json
import shlex
from typing import Any

import pytest

from cli.flags.options import ParsedOptions
from cli.main import run
from lm.config.options import Option, list_options
from lm.config.run_config import SECTIONS
from tests.documented_help import commands
from tests.system.conftest import SMALL

TRAIN = next(command for path, command in commands() if path == "lm train")
_OWN = {"validation": "0.2", "budget": "10m", "on": "attention", "encoding": "latin-1", "source_language": "en",
        "target_language": "de", "logit_bias": "5=1"}  # fmt: skip


def given(*arguments: str) -> ParsedOptions:
    """What `lm train` is given by a command line."""
    context = TRAIN.make_context("train", ["text.txt", *arguments])
    parsed: ParsedOptions = context.params["options"]
    return parsed


def value_of(option: Option) -> Any:
    """A value that an option accepts."""
    if option.choices:
        return option.choices[-1]
    if option.kind is bool:
        return True
    if option.kind in (str, tuple):
        return _OWN.get(option.name, "word")
    number = max(option.minimum or 0, 1 if option.kind is int else 0.5)
    return option.kind(min(number, option.maximum or number))


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    (tmp_path / "empty.txt").touch()


@pytest.mark.parametrize("section", SECTIONS)
def test_a_setting_equals_its_flag(section):
    for option in list_options(SECTIONS[section]):
        value = value_of(option)
        by_flag = given(option.flag) if option.kind is bool else given(option.flag, str(value))
        by_key = given("--set", f"{section}.{option.name}={str(value).lower() if option.kind is bool else value}")
        expected = (value,) if option.kind is tuple else value
        assert by_flag == by_key
        assert {name: values for name, values in by_key.items() if values} == {section: {option.name: expected}} or (
            list(by_key[section][option.name]) == [value]
        )
        assert by_key.from_flags == by_flag.from_flags


@pytest.mark.parametrize("section", SECTIONS)
def test_a_wrong_value_has_the_message_of_the_flag(section, capsys):
    for option in list_options(SECTIONS[section]):
        if option.kind in (str, tuple) and not option.choices:
            continue  # takes every text
        key = f"{section}.{option.name}"
        assert run(["train", "text.txt", "--set", f"{key}=wrong"]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert (f"--set {key}" if option.is_advanced else option.flag) in said
        if option.kind is not bool:
            assert run(["train", "text.txt", option.flag, "wrong"]) == 2
            assert capsys.readouterr().err == said


@pytest.mark.parametrize(("text", "value"), [("true", True), ("no", False), ("1", True), ("false", False)])
def test_switches_take_the_words_of_toml_and_of_variables(text, value):
    switches = [(section, each.name) for section, kind in SECTIONS.items() for each in list_options(kind)
                if each.kind is bool]  # fmt: skip
    parsed = given(*itertools.chain(*(("--set", f"{section}.{name}={text}") for section, name in switches)))
    settings = {(section, name): set_to for section, values in parsed.items() for name, set_to in values.items()}
    assert settings == dict.fromkeys(switches, value)


def test_the_last_of_a_flag_and_its_setting_wins_and_lists_grow():
    assert given("--d-model", "8", "--set", "model.d_model=16")["model"] == {"d_model": 16}
    assert given("--set", "model.d_model=16", "--d-model", "8")["model"] == {"d_model": 8}
    parsed = given("--sample", "a", "--set", "training.sample=b", "--sample", "c=d", "--set", "training.sample=e=f")
    assert list(parsed["training"]["sample"]) == ["a", "b", "c=d", "e=f"]


def test_a_setting_wins_over_its_variable_and_a_file(monkeypatch, tmp_path):
    monkeypatch.setenv("LM_SOFTCAP", "3")
    assert given().from_environment["model"] == {"softcap": 3}
    parsed = given("--set", "model.softcap=5")
    assert parsed.from_flags["model"] == {"softcap": 5}
    assert parsed.from_environment["model"] == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model.exprts=8", "no setting 'model.exprts' (did you mean 'model.experts'?)"),
        ("xyzzy=8", "no setting 'xyzzy'"),
        ("model.experts", "--set takes KEY=VALUE, not 'model.experts'"),
        ("8", "--set takes KEY=VALUE, not '8'"),
    ],
)
def test_a_wrong_key_is_a_line_that_suggests_one(capsys, text, said):
    assert run(["train", "text.txt", "--set", text]) == 2
    assert capsys.readouterr().err == f"lm: {said} (see lm train --help-settings)\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--expert", "8"], "no option --expert (did you mean '--set model.experts'?) (see lm train --help)"),
        (["--no-zero-inti"], "no option --no-zero-inti (did you mean '--no-zero-init'?) "
                             "(see lm train --help)"),
        (["--experts", "-1"], "experts must be at least 0, not -1 (--set model.experts)"),
        (["--set", "model.experts=-1"], "experts must be at least 0, not -1 (--set model.experts)"),
    ],
)  # fmt: skip
def test_messages_name_the_key_of_a_setting_without_a_visible_flag(capsys, arguments, said):
    assert run(["train", "text.txt", *arguments]) == 2
    assert capsys.readouterr().err == f"lm: {said}\n"


def test_a_variable_of_a_hidden_setting_is_named_in_its_place(capsys, monkeypatch):
    monkeypatch.setenv("LM_EXPERTS", "-2")
    assert run(["train", "text.txt"]) == 2
    assert capsys.readouterr().err == "lm: experts must be at least 0, not -2 (LM_EXPERTS)\n"
    assert run(["train", "text.txt", "--set", "model.experts=-1"]) == 2
    assert capsys.readouterr().err == "lm: experts must be at least 0, not -1 (--set model.experts)\n"


@pytest.mark.medium
def test_the_command_of_a_dry_run_sets_what_has_no_visible_flag_and_makes_the_same_run(capsys, tmp_path):
    typed = ["--set", "model.softcap=5", "--no-zero-init", "--set", "training.beta1=0.8", "--steps", "2",
             "--set", "training.decay_fraction=0.5", "--schedule", "wsd"]  # fmt: skip
    assert run(["train", "text.txt", *SMALL, *typed, "-o", "a", "--dry-run"]) == 0
    command = shlex.split(capsys.readouterr().out)
    settings = [value for option, value in itertools.pairwise(command) if option == "--set"]
    assert settings[:2] == ["model.zero_init=false", "model.softcap=5.0"]
    assert "training.beta1=0.8" in settings
    assert not {each.flag for kind in SECTIONS.values() for each in list_options(kind) if each.is_advanced} & {*command}
    assert run(command[1:]) == 0
    assert run(["train", "text.txt", *SMALL, *typed, "-o", "b"]) == 0
    first, second = (json.loads((tmp_path / name / "config.json").read_text()) for name in "ab")
    for section in SECTIONS:
        if section != "hardware":  # chosen by the machine, and then explicit
            assert first[section] == second[section], section
    assert (tmp_path / "a" / "metrics.jsonl").read_text() == (tmp_path / "b" / "metrics.jsonl").read_text()
