"""Settings by flags, `--set`, a file, the environment and Python: the same run; which of them wins."""

import json
from pathlib import Path

import pytest

import lm
from cli.arguments import complete_settings
from cli.main import run
from lm.config.run_config import SECTIONS
from lm.config.settings import list_all_settings

GIVEN = {
    "preset": "tiny", "steps": 1, "d_model": 8, "n_layers": 1, "n_heads": 2, "context": 16, "batch_size": 4,
    "dropout": 0.1, "optimizer": "adamw", "learning_rate": 0.01, "evaluate_every": 1, "seed": 3, "vocab_size": 300,
    "threads": 1, "device": "cpu", "dtype": "float32", "sample": ("The owl", "Über"),
}  # fmt: skip
BY_KEY = {"experts": 2, "bias": True, "ema": 0.5, "exclude": ("*.md",)}


@pytest.fixture
def text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("The owl saw the fox by the mill.\nÜber den Bäumen.\n" * 200)
    return "text.txt"


def written(folder: str) -> dict:
    config = json.loads(Path(folder, "config.json").read_text())
    return {name: value for name, value in config.items() if name != "plan"}


def words(values: dict, spell) -> list[str]:
    texts = [
        (name, text) for name, value in values.items() for text in (value if isinstance(value, tuple) else (value,))
    ]
    return [word for name, text in texts for word in spell(name, str(text).lower() if isinstance(text, bool) else text)]


def test_flags_a_file_the_environment_and_python_make_the_same_run(text, tmp_path, monkeypatch):
    keys = {setting.keyword: setting.key for setting in list_all_settings(SECTIONS)}
    by_key = words(BY_KEY, lambda name, value: ("--set", f"{keys[name]}={value}"))
    flags = words(GIVEN, lambda name, value: ("--" + name.replace("_", "-"), str(value)))
    assert run(["train", text, *flags, *by_key, "-o", "flags"]) == 0

    tables: dict[str, list[str]] = {}
    for name, value in {**GIVEN, **BY_KEY}.items():
        table, _, key = keys.get(name, name).rpartition(".")
        tables.setdefault(table, []).append(f"{key} = {json.dumps(value, ensure_ascii=False)}")
    toml = "\n".join(line for table, lines in tables.items() for line in (f"[{table}]" if table else "", *lines))
    (tmp_path / "settings.toml").write_text(toml)
    assert run(["train", text, "--config", "settings.toml", "-o", "file"]) == 0

    lm.train(text, out="python", **GIVEN, **BY_KEY)

    single = {**GIVEN, **BY_KEY, "sample": "The owl", "exclude": "*.md"}
    for name, value in single.items():
        if name != "preset":
            monkeypatch.setenv(f"LM_{name.upper()}", str(value).lower() if isinstance(value, bool) else str(value))
    assert run(["train", text, "--preset", "tiny", "--sample", "The owl", "--sample", "Über", "-o", "environment"]) == 0
    assert written("file") == written("python") == written("environment") == written("flags")
    assert written("flags")["model"]["experts"] == 2


def test_flags_win_over_the_environment_and_that_over_a_file(text, tmp_path, monkeypatch):
    (tmp_path / "settings.toml").write_text(
        'preset = "tiny"\ntokenizer = "char"\n[training]\nsteps = 3\nseed = 1\nbeta1 = 0.5\n'
    )
    monkeypatch.setenv("LM_SEED", "2")
    monkeypatch.setenv("LM_EPOCHS", "4")
    spec = lm.run_spec(text, config="settings.toml", steps=5)
    training = spec.settings["training"]
    assert (training["steps"], training["seed"], training["beta1"]) == (5, 2, 0.5)
    assert "epochs" not in training  # one length replaces another
    assert (spec.tokenizer, spec.settings["tokenizer"]) == (None, {"kind": "char"})
    assert [spec.set_by[f"training.{name}"] for name in ("steps", "seed", "beta1")] == ["python", "environment", "file"]


def test_the_short_help_fits_on_a_screen(capsys):
    for command in ("train", "generate"):
        assert run([command, "-h"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) <= 40
        assert max(map(len, lines)) <= 80


def test_an_unknown_option_suggests_what_its_command_has(capsys):
    for words, hint in (
        (["generate", "run", "--token-healing"], "--set sampling.token_healing"),
        (["train", "--experts", "4"], "--set model.experts"),
        (["train", "--learning-rat", "1"], "--learning-rate"),
    ):
        assert run(words) == 2
        assert f"(did you mean '{hint}'?)" in capsys.readouterr().err


def test_values_of_a_setting_are_completed():
    complete = complete_settings(list_all_settings(SECTIONS))
    assert complete("model.norm=") == ["model.norm=layernorm", "model.norm=rmsnorm"]
    assert complete("model.bias=") == ["model.bias=true", "model.bias=false"]
