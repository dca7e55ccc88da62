"""What runs have left behind: one that is damaged keeps nobody from seeing the others."""

import json
import os
import shutil

import pytest

from lm.errors import InputError
from lm.model.transformer import count_parameters
from lm.training.loop import train
from lm.training.run_summaries import find_unfinished, list_runs, load_curves, read_expert_load, summarise_run


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
    found, damaged = list_runs(folder)
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
    found, damaged = list_runs(folder)
    assert [summary.folder.name for summary in found] == ["run"]
    assert len(damaged) == 1
    assert str(path) in damaged[0]


def test_a_copy_beside_the_checkpoints_is_no_harm(folder):
    checkpoints = folder / "other" / "checkpoints"
    shutil.copytree(checkpoints / "step-1", checkpoints / "step-1-backup")
    found, damaged = list_runs(folder)
    assert (len(found), damaged) == (2, [])


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


def test_where_all_are_finished_there_is_none_to_continue_with(make_run, tmp_path):
    stopped(make_run("a"), 12)
    with pytest.raises(InputError, match="no unfinished run"):
        find_unfinished(tmp_path)
    assert summarise_run(tmp_path / "a").state.finished


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
    for torn in ("[" * 200_000, "[1]", '{"loss": 1}', '{"step": 4, "lo'):
        (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5}\n' + torn + "\n")
        with pytest.raises(InputError, match="metrics.jsonl, line 2: not a log entry"):
            load_curves(tmp_path)


def test_what_is_not_finite_is_in_no_curve(tmp_path):
    lines = [f'{{"step": {step}, "loss": {loss}}}' for step, loss in enumerate(("2.5", "NaN", "Infinity", "2.0"))]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "timings.jsonl").write_text('{"step": 0, "seconds": NaN}\n')
    found = load_curves(tmp_path)
    assert found.keys() == {"loss"}
    assert (found["loss"].steps, found["loss"].values) == ([0, 3], [2.5, 2.0])


def test_the_use_of_experts_is_that_of_the_last_evaluation_up_to_a_step(tmp_path):
    assert read_expert_load(tmp_path, step=9) == {}
    lines = ['{"step": 2, "loss": 1.0}', '{"step": 2, "validation_expert_use": {"a": [0.25, 0.75]}}', "[1]", "{",
             '{"step": 4, "validation_expert_use": {"a": [0.5, 0.5]}}', '{"step": 5, "loss": 1.0}']  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    found = [read_expert_load(tmp_path, step=step) for step in (1, 2, 3, 4, 5)]
    assert found == [{}, {"a": [0.25, 0.75]}, {"a": [0.25, 0.75]}, {"a": [0.5, 0.5]}, {"a": [0.5, 0.5]}]
