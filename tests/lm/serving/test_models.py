"""The names of served models."""

from __future__ import annotations

import pytest

from lm.config.hardware import HardwareConfig
from lm.config.serving import ServerConfig
from lm.errors import UsageError
from lm.serving.models import load_models, name_models
from tests.cli.small_runs import make_run


def test_a_model_is_named_as_its_folder_is_typed(tmp_path, monkeypatch):
    run = make_run(tmp_path / "runs" / "owl")
    (tmp_path / "link").symlink_to(run)
    (tmp_path / "a=b").symlink_to(run)
    monkeypatch.chdir(run / "checkpoints")
    typed = {
        str(run): "owl", str(tmp_path / "link"): "link", f"fox={run}": "fox", str(tmp_path / "a=b"): "a=b", "..": "owl",
        str(run / "checkpoints" / "step-0"): "owl/step-0",
    }  # fmt: skip
    for argument, name in typed.items():
        assert list(name_models([argument])) == [name]


def test_two_models_of_one_name_are_refused(tmp_path):
    with pytest.raises(UsageError, match="are both called 'owl': name one, NAME="):
        name_models([str(tmp_path / "a" / "owl"), str(tmp_path / "b" / "owl")])


def test_a_model_is_described_by_what_it_was_trained_for(tmp_path):
    runs = {
        "text": make_run(tmp_path / "text"),
        "decoder": make_run(tmp_path / "decoder", supervised=True, label_completions=("\nfox", "\nowl")),
        "masked": make_run(tmp_path / "masked", objective="masked"),
        "encoder": make_run(tmp_path / "encoder", supervised=True, objective="masked", labels=("fox", "owl")),
    }
    models = load_models(runs, HardwareConfig(threads=1), ServerConfig(), lambda *_: None)
    entries = {model.name: model.to_dict() for model in models}
    assert {name: (entry["purpose"], entry["has_completions"]) for name, entry in entries.items()} == {
        "text": ("continues texts", True),
        "decoder": ("classifies texts", True),
        "masked": ("fills blanks", False),
        "encoder": ("classifies texts", False),
    }
