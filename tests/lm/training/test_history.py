"""What runs have left behind: one that is damaged keeps nobody from seeing the others."""

from __future__ import annotations

import json
import shutil

import pytest

from lm.training.history import runs
from lm.training.trainer import train


@pytest.fixture
def folder(make_run, tmp_path):
    """Of a run, and a copy of it called `other`, to be damaged."""
    list(train(make_run(steps=1)))
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("config.json", {"training": []}),
        ("config.json", {"plan": {"steps": 3}}),
        ("config.json", {"model": {"d_model": "wide"}}),
        ("state.json", {"step": "third"}),
        ("state.json", {"best_loss": "low"}),
        ("state.json", {"stop": 3}),
    ],
)
def test_a_run_with_wrong_values_is_left_out(folder, name, change):
    path = folder / "other" / "checkpoints" / "step-1" / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    found, damaged = runs(folder)
    assert [summary.folder.name for summary in found] == ["run"]
    assert [problem for problem in damaged if str(path) in problem] == damaged
    assert len(damaged) == 1


@pytest.mark.parametrize("content", [b"[]", b"{", b"\xff", None])
def test_a_run_whose_settings_cannot_be_read_is_left_out(folder, content):
    path = folder / "other" / "checkpoints" / "step-1" / "config.json"
    path.unlink()
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    found, damaged = runs(folder)
    assert [summary.folder.name for summary in found] == ["run"]
    assert len(damaged) == 1
    assert str(path) in damaged[0]


def test_a_copy_beside_the_checkpoints_is_no_harm(folder):
    checkpoints = folder / "other" / "checkpoints"
    shutil.copytree(checkpoints / "step-1", checkpoints / "step-1-backup")
    found, damaged = runs(folder)
    assert (len(found), damaged) == (2, [])
