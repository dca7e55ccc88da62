"""Checkpoints named one by one, or the latest of a run, become one model."""

from __future__ import annotations

import torch

from cli.main import run
from lm.checkpoint import load_weights, save_checkpoint
from lm.run_folder import TrainingState, load_config
from tests.cli.small_runs import make_run, make_tokenizer


def test_the_latest_of_a_run_and_checkpoints_one_by_one(tmp_path, capsys):
    first = make_run(tmp_path / "novel") / "checkpoints" / "step-0"
    weights = {name: value + 2 for name, value in load_weights(first).items()}
    second = save_checkpoint(
        tmp_path / "novel",
        config=load_config(first),
        tokenizer=make_tokenizer("bpe"),
        model=weights,
        optimizer={},
        state=TrainingState(step=1),
        is_best=True,
    )
    assert run(["average", str(tmp_path / "novel"), "-o", str(tmp_path / "a")]) == 0
    assert "mean of  step-0, step-1" in capsys.readouterr().err
    assert run(["average", str(second), str(first), "-o", str(tmp_path / "b")]) == 0
    for name, value in load_weights(first).items():
        assert all(torch.allclose(load_weights(tmp_path / made)[name], value + 1) for made in "ab")


def test_a_checkpoint_counts_once(tmp_path, capsys):
    folder = str(make_run(tmp_path / "novel"))
    assert run(["average", folder, folder, "-o", str(tmp_path / "mean")]) == 2
    assert "the same checkpoint is named twice" in capsys.readouterr().err
