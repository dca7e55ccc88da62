"""Options from the environment: as good as flags, but flags win, and they contradict nothing."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from cli.flags.environment import environment_variable
from cli.main import run
from lm.config.training import LENGTHS
from tests.documented_help import commands
from tests.system.conftest import SMALL

TEXT = "the quick brown fox jumps over the lazy dog\n" * 200


@pytest.fixture
def text(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def train(text, tmp_path, monkeypatch):
    """Trains a small model with variables set and flags given; gives the run's configuration."""

    def trained(*flags: str, name: str = "run", shape: Sequence[str] = SMALL, **variables: str) -> dict:
        with monkeypatch.context() as patch:
            for variable_name, value in variables.items():
                patch.setenv(variable_name, value)
            assert run(["train", str(text), "-o", str(tmp_path / name), *shape, *flags]) == 0
        return json.loads((tmp_path / name / "config.json").read_text())

    return trained


def test_a_variable_is_a_flag_and_a_flag_wins(train):
    config = train("--seed", "9", LM_STEPS="2", LM_SEED="5", LM_QK_NORM="no", LM_SAMPLE="the quick", LM_DROPOUT="")
    assert config["training"]["steps"] == 2
    assert config["training"]["seed"] == 9
    assert config["model"]["qk_norm"] is False
    assert config["training"]["sample"] == ["the quick"]
    assert config["model"]["dropout"] == 0.0


def test_the_environment_wins_over_a_file_and_the_file_over_a_preset(train, tmp_path):
    settings = tmp_path / "settings.toml"
    settings.write_text("[training]\nsteps = 4\nlearning_rate = 0.25\nclip = 0.5\n")
    flags = ("--config", str(settings), "--preset", "nanogpt-cpu")
    config = train(*flags, LM_STEPS="3", LM_LEARNING_RATE="0.125")
    training = config["training"]
    assert (training["steps"], training["learning_rate"], training["clip"]) == (3, 0.125, 0.5)
    assert training["beta2"] == 0.99


@pytest.mark.parametrize(
    ("flags", "variables", "kept"),
    [
        (["--epochs", "0.05"], {"LM_STEPS": "3"}, {"epochs": 0.05, "steps": None}),
        (["--batch-size", "4"], {"LM_BATCH_TOKENS": "160", "LM_STEPS": "1"}, {"batch_size": 4, "batch_tokens": None}),
    ],
)
def test_a_flag_replaces_a_variable_that_says_the_same_otherwise(train, flags, variables, kept):
    training = train(*flags, **variables)["training"]
    assert {name: training[name] for name in kept} == kept


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("LM_STEPS", "many", "LM_STEPS: 'many' is not a valid int"),
        ("LM_STEPS", "0", "steps must be at least 1, not 0 (LM_STEPS)"),
        ("LM_SCHEDULE", "cosin", "did you mean 'cosine'"),
        ("LM_SCHEDULE", "cosin", "(LM_SCHEDULE)"),
        ("LM_PRESET", "tyni", "(LM_PRESET)"),
        ("LM_COMPILE", "perhaps", "LM_COMPILE: 'perhaps' is not a valid boolean"),
    ],
)
def test_a_bad_value_names_the_variable(name, value, message, text, monkeypatch, capsys):
    monkeypatch.setenv(name, value)
    assert run(["train", str(text)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert message in said[0]


def test_a_run_continues_as_it_was_planned_whatever_the_environment_says(train, tmp_path, monkeypatch):
    before = train("--steps", "4", "--evaluate-every", "2")
    for name, value in (("LM_STEPS", "9"), ("LM_LEARNING_RATE", "1"), ("LM_OUT", "x"), ("LM_PRESET", "small")):
        monkeypatch.setenv(name, value)
    middle = tmp_path / "run" / "checkpoints" / "step-2"
    assert run(["train", "--resume", str(middle)]) == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text()) == before
    assert (tmp_path / "run" / "last").read_text() == "step-4\n"


def test_a_depth_and_a_preset_replace_each_other_as_flags_replace_variables(train, tmp_path):
    assert train("--steps", "1", "--preset", "nanogpt-cpu", name="a", LM_DEPTH="2")["preset"] == "nanogpt-cpu"
    of_depth = train("--steps", "1", "--depth", "1", name="b", shape=SMALL[6:], LM_PRESET="nanogpt-cpu")
    assert of_depth["preset"] == "depth-1"
    assert train("--steps", "1", name="c", LM_DEPTH="1")["preset"] == "depth-1"


def test_a_run_continues_whatever_depth_the_environment_names(train, tmp_path, monkeypatch):
    train("--steps", "1")
    monkeypatch.setenv("LM_DEPTH", "3")
    assert run(["train", "--resume", str(tmp_path / "run"), "--steps", "2"]) == 0


def test_variables_for_training_a_tokenizer_are_ignored_where_there_is_one(train, text, tmp_path, monkeypatch, capsys):
    train("--steps", "1")
    monkeypatch.setenv("LM_KIND", "char")
    shape = SMALL[: SMALL.index("--kind")]
    assert (
        run(
            [
                "train", str(text), "--tokenizer", str(tmp_path / "run"), "-o", str(tmp_path / "two"), "--steps", "1",
                *shape,
            ]
        )
        == 0
    )  # fmt: skip
    assert run(["prepare", str(text), "--tokenizer", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert run(["prepare", str(text), "--tokenizer", str(tmp_path / "run"), "--kind", "char"]) == 2


@pytest.mark.parametrize(("name", "value", "said"), [
    ("LM_LORA_ALPHA", "16", "lora.alpha has no effect without lora.rank (LM_LORA_ALPHA, --lora)"),
    ("LM_GATE_NOISE", "1", "model.gate_noise has no effect without model.experts (LM_GATE_NOISE, --set model.experts)"),
])  # fmt: skip
def test_a_variable_for_what_is_off_is_refused_by_training(name, value, said, text, monkeypatch, capsys):
    monkeypatch.setenv(name, value)
    assert run(["train", str(text), "--steps", "1", *SMALL]) == 2
    assert capsys.readouterr().err == f"lm: {said}\n"


def test_generate_takes_flags_before_variables_that_contradict_them(train, tmp_path, monkeypatch, capsys):
    train("--steps", "1")
    generate = ["generate", str(tmp_path / "run"), "the", "--max-tokens", "3"]
    for name, value in (("LM_TEMPERATURE", "0.5"), ("LM_LENGTH_PENALTY", "0.5"), ("LM_TOP_ALTERNATIVES", "2")):
        monkeypatch.setenv(name, value)
    assert run(generate) == 0
    assert run([*generate, "--beam", "2"]) == 0
    monkeypatch.setenv("LM_BEAM", "2")
    capsys.readouterr()
    assert run([*generate, "--temperature", "2"]) == 2
    assert "sampling.temperature cannot be given beside beam search (--temperature)" in capsys.readouterr().err


def test_every_option_but_cache_and_set_has_a_variable_and_they_are_distinct_within_a_command():
    for path, command in commands():
        if hasattr(command, "commands"):
            continue
        options = [each for each in command.params if each.param_type_name == "option" and not each.is_eager]
        without = {option.opts[0] for option in options if environment_variable(option) is None}
        assert without <= {"--cache", "--set"}, path
        named = [name for name in map(environment_variable, options) if name]
        assert len(named) == len(set(named)), path


def test_lengths_are_options():
    """The names that replace one another are names of variables too."""
    known = {environment_variable(option) for _, command in commands() for option in command.params}
    assert {f"LM_{name.upper()}" for name in LENGTHS} <= known
