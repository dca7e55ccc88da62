"""The names of served models."""

from __future__ import annotations

import pytest

from lm.errors import UsageError
from lm.serving.models import name_models
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
