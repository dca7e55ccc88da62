"""A log loses no complete line, whatever is in it and whatever happens while it is cut; damage hides no other run."""

import json
import os
from pathlib import Path

import pytest

from lm.model import count_parameters
from lm.training.loop import train
from lm.training.run_log import Evaluation, Sample, Step, list_runs, load_curves, log_event, log_step, truncate_logs
from tests.lm.training.conftest import stop_after

ANY_LINE_END = "one\u2028two\u0085three\x0bfour\rfive\nsix"


@pytest.fixture
def run(tmp_path) -> Path:
    """Logs of twenty steps, with a sample at the tenth."""
    for step in range(1, 21):
        log_step(tmp_path, Step(step, 2.0, 2.0, 0.1, 1.0, 64, 1e6, 0.5), epoch=step / 20)
        if step == 10:
            log_event(tmp_path, Evaluation(step, 1.5, 2.0, 64, 0.1, is_best=True))
            log_event(tmp_path, Sample(step, "the", ANY_LINE_END))
    return tmp_path


def entries(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().split("\n")[:-1]]


def test_a_line_ends_with_a_line_feed_alone(run):
    truncate_logs(run, 15)
    assert [entry["step"] for entry in entries(run)] == [*range(1, 11), 10, 10, *range(11, 16)]
    assert next(entry["sample"] for entry in entries(run) if "sample" in entry) == ANY_LINE_END
    curves = load_curves(run)
    assert curves["loss"] == dict.fromkeys(range(1, 16), 2.0)
    assert curves["validation_loss"] == {10: 1.5}


@pytest.mark.parametrize(
    "torn",
    [b'{"step": 21, "lo', b'{"step": 21, "prompt": "\xc3', b"\0\0\0\0", b"[1]\n", b"[" * 200_000 + b"\n"],
    ids=range(5),
)
def test_what_a_crash_has_torn_is_dropped(run, torn):
    whole = entries(run)
    for name in ("metrics.jsonl", "timings.jsonl"):
        (run / name).write_bytes((run / name).read_bytes() + torn)
    assert max(load_curves(run)["loss"]) == 20
    truncate_logs(run, 25)
    assert entries(run) == whole


def test_runs_come_in_the_order_in_which_they_were_changed(make_run, tmp_path):
    for seconds, (name, steps) in enumerate({"b": 3, "c": 4, "a": 12}.items(), 1000):
        run = make_run(name)
        list(train(run, stop=stop_after(steps)))
        for path in (run.folder / "metrics.jsonl", *run.folder.glob("checkpoints/*")):
            os.utime(path, (seconds, seconds))
    (tmp_path / "no run").mkdir()
    (tmp_path / "b" / "checkpoints" / "step-3" / "state.json").write_text("{")
    found, (damaged,) = list_runs(tmp_path)
    assert [(summary.folder.name, summary.state.step, summary.steps) for summary in found] == [
        ("c", 4, 12), ("a", 12, 12),
    ]  # fmt: skip
    assert found[0].parameters == count_parameters(run.model)
    assert "state.json" in damaged
