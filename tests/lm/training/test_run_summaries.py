"""What runs have left behind: one that is damaged keeps nobody from seeing the others."""

import os
import shutil

import pytest

from lm.errors import InputError
from lm.model.transformer import count_parameters
from lm.training.loop import train
from lm.training.run_summaries import find_unfinished, list_runs, load_curves


@pytest.fixture
def folder(make_run, tmp_path):
    """Of a run, and a copy of it called `other`, to be damaged."""
    list(train(make_run(steps=1)))
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    return tmp_path


def stopped(run, after: int):
    steps = iter(range(1, 1000))
    list(train(run, stop=lambda: next(steps) >= after))
    return run


def changed(folder, seconds: float) -> None:
    for path in (folder / "metrics.jsonl", *folder.glob("checkpoints/*")):
        os.utime(path, (seconds, seconds))


def test_runs_come_in_the_order_in_which_they_were_changed(make_run, tmp_path):
    made = {name: stopped(make_run(name), steps) for name, steps in (("a", 12), ("b", 3), ("c", 4), ("d", 2))}
    for seconds, name in enumerate("bdca", 1000):
        changed(tmp_path / name, seconds)
    os.utime(tmp_path / "d" / "metrics.jsonl", (2000, 2000))
    (tmp_path / "no run").mkdir()
    (tmp_path / "b" / "checkpoints" / "step-3" / "state.json").write_text("{")
    found, damaged = list_runs(tmp_path)
    assert [summary.folder.name for summary in found] == ["c", "a", "d"]
    assert [summary.modified_at for summary in found] == [1002, 1003, 2000]
    assert [(summary.state.step, summary.steps) for summary in found] == [(4, 12), (12, 12), (2, 12)]
    assert found[0].parameters == count_parameters(made["c"].model)
    (message,) = damaged
    assert "state.json" in message
    assert find_unfinished(tmp_path).name == "d"
    changed(tmp_path / "c", 3000)
    assert find_unfinished(tmp_path).name == "c"
    with pytest.raises(InputError, match="no such folder"):
        list_runs(tmp_path / "none")


def test_curves_are_what_the_logs_hold(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5, "sample": "x"}\n{"step": 3, "loss": 2}\n')
    with pytest.raises(InputError, match=r"timings.jsonl: no such file"):
        load_curves(tmp_path)
    (tmp_path / "timings.jsonl").write_text('{"step": 3, "seconds": 0.5}\n')
    found = load_curves(tmp_path)
    assert {name: (curve.steps, curve.values) for name, curve in found.items()} == {
        "loss": ([1, 3], [2.5, 2.0]),
        "seconds": ([3], [0.5]),
    }
