"""A log loses no complete line, whatever is in it and whatever happens while it is cut."""

import dataclasses
import json
from pathlib import Path

import pytest

from cli.console.curves import plot_curves
from lm.config.run_config import RunConfig, RunPlan
from lm.errors import InputError
from lm.training.events import Evaluation, Sample, Step
from lm.training.run_log import RunLog
from lm.training.run_summaries import load_curves, read_expert_load
from tests.lm.full_disk import full_disk

ANY_LINE_END = "one\u2028two\u0085three\x0bfour\rfive\nsix"


@pytest.fixture
def log(tmp_path) -> RunLog:
    """Of twenty steps, with a sample at the tenth."""
    log = RunLog(tmp_path)
    for step in range(1, 21):
        log.log_step(Step(step, 2.0, 0.1, 1.0, 64, 1e6, 0.5), epoch=step / 20)
        if step == 10:
            log.log_event(Evaluation(step, 1.5, 2.0, 64, 0.1, is_best=True))
            log.log_event(Sample(step, "the", ANY_LINE_END))
    return log


def entries(log: RunLog) -> list[dict]:
    return [json.loads(line) for line in log.metrics.read_text().split("\n")[:-1]]


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_an_entry_holds(tmp_path):
    log = RunLog(tmp_path)
    log.log_step(Step(3, 2.5, 0.1, 1.5, 64, 1e6, 0.5), epoch=0.25)
    log.log_step(Step(4, 2.5, 0.1, 1.5, 64, 1e6, 0.25, nll=2.0), epoch=0.5)
    log.log_event(Evaluation(4, 1.5, 2.0, 64, 0.125, is_best=True, expert_use={"0": [0.5, 0.5]}))
    log.log_event(Sample(4, "the", "owl"))
    step = {"loss": 2.5, "learning_rate": 0.1, "gradient_norm": 1.5, "tokens": 64}
    evaluation = Evaluation(4, 1.5, 2.0, 64, 0.125, is_best=True).metrics
    assert read(log.metrics) == [
        {"step": 3, **step, "epoch": 0.25}, {"step": 4, **step, "nll": 2.0, "epoch": 0.5},
        {"step": 4, **evaluation, "validation_expert_use": {"0": [0.5, 0.5]}},
        {"step": 4, "prompt": "the", "sample": "owl"},
    ]  # fmt: skip
    assert read(log.timings) == [
        {"step": 3, "seconds": 0.5, "tokens_per_second": 128}, {"step": 4, "seconds": 0.25, "tokens_per_second": 256},
        {"step": 4, "evaluation_seconds": 0.125},
    ]  # fmt: skip
    silent = RunLog(tmp_path / "other", writes=False)
    silent.log_step(Step(3, 2.5, 0.1, 1.5, 64, 1e6, 0.5), epoch=0.25)
    assert not (tmp_path / "other").exists()


def test_each_setting_and_each_change_has_a_reason(tmp_path):
    log = RunLog(tmp_path)
    plan = RunPlan(data="tokens", data_key="key", steps=9, device="cpu", dtype="float32", threads=2, processes=1)
    config = RunConfig(label_completions=("a", "b"), plan=plan)
    log.log_decisions(0, config, {"training.steps": "budget", "plan.steps": "budget"})
    reasons = {name: entry["by"] for entry in read(log.decisions) for name in entry["chosen"]}
    values = {name: value for entry in read(log.decisions) for name, value in entry["chosen"].items()}
    assert {entry["step"] for entry in read(log.decisions)} == {0}
    assert len(reasons) == sum(len(entry["chosen"]) for entry in read(log.decisions))
    expected = {
        "training.steps": "budget", "plan.steps": "budget", "training.seed": "given", "model.d_model": "given",
        "preset": "given", "label_completions": "corpus", "plan.data": "corpus", "plan.data_key": "corpus",
        "plan.device": "hardware", "plan.dtype": "speed measured", "plan.threads": "speed measured",
        "plan.processes": "launcher", "plan.budget_seconds": "length",
    }  # fmt: skip
    assert {name: reasons[name] for name in expected} == expected
    assert (values["plan.steps"], values["model.d_model"]) == (9, config.model.d_model)
    log.log_changes(3, config, config, by="nothing")
    longer = dataclasses.replace(config, plan=dataclasses.replace(plan, steps=12))
    log.log_changes(4, config, longer, by="resumed")
    assert read(log.decisions)[-1] == {"step": 4, "by": "resumed", "chosen": {"plan.steps": 12}}
    assert [log.last_reason(name) for name in ("plan.steps", "training.steps", "plan.nothing")] == [
        "resumed", "budget", None,
    ]  # fmt: skip
    log.clear()
    assert not log.decisions.exists()


def test_the_evaluation_of_the_step_that_a_run_resumes_at_is_kept_unless_it_comes_again(log):
    assert [log.last_validation_loss(step) for step in (9, 10, 20)] == [None, 1.5, 1.5]
    log.truncate(10)
    assert [sorted(entry.keys() & {"loss", "sample"}) for entry in entries(log)[-3:]] == [["loss"], [], ["sample"]]
    log.truncate(10, evaluation_due=True)
    assert [entry["step"] for entry in entries(log)] == list(range(1, 11))
    assert [entry["step"] for entry in read(log.timings)] == list(range(1, 11))
    assert log.last_validation_loss(20) is None


def test_a_log_is_as_before_once_its_backup_is_restored(log):
    before = log.metrics.read_bytes(), log.timings.read_bytes()
    log.back_up()
    log.truncate(5)
    assert (log.metrics.read_bytes(), log.timings.read_bytes()) != before
    log.restore_backup()
    assert (log.metrics.read_bytes(), log.timings.read_bytes()) == before
    log.back_up()
    log.truncate(5)
    log.discard_backup()
    log.restore_backup()
    assert len(entries(log)) == 5


def test_numbers_that_json_does_not_have_are_null(log, tmp_path):
    log.log_step(Step(21, 2.0, 0.1, float("inf"), 64, 1e6, 0.5), epoch=1.0)
    last = log.metrics.read_text().splitlines()[-1]
    assert json.loads(last, parse_constant=pytest.fail)["gradient_norm"] is None
    assert load_curves(tmp_path)["loss"].steps[-1] == 21


def test_a_line_ends_with_a_line_feed_alone(log, tmp_path):
    log.truncate(15)
    assert [entry["step"] for entry in entries(log)] == [*range(1, 11), 10, 10, *range(11, 16)]
    assert next(entry["sample"] for entry in entries(log) if "sample" in entry) == ANY_LINE_END
    assert load_curves(tmp_path)["loss"].steps == list(range(1, 16))


def test_a_full_disk_loses_no_line(log):
    before = log.metrics.read_bytes()
    with full_disk(after=200), pytest.raises(OSError, match="File too large"):
        log.truncate(15)
    assert log.metrics.read_bytes() == before


def test_lines_for_which_there_is_no_room_wait_for_it(log):
    with full_disk(after=log.metrics.stat().st_size + 9):
        log.log_event(Sample(20, "the", "end"))
        assert "metrics.jsonl: File too large" in str(log.pop_warning())
        log.log_step(Step(21, 2.0, 0.1, 1.0, 64, 1e6, 0.5), epoch=1.05)
        assert log.pop_warning() is None  # once is enough
        assert entries(log)[-1]["step"] == 20
        assert log.metrics.read_bytes().endswith(b"}\n")  # nothing torn
        with pytest.raises(OSError, match=r"metrics\.jsonl'"):
            log.flush()
    log.log_step(Step(22, 2.0, 0.1, 1.0, 64, 1e6, 0.5), epoch=1.1)
    log.flush()
    assert [(entry["step"], entry.get("sample")) for entry in entries(log)[-3:]] == [
        (20, "end"),
        (21, None),
        (22, None),
    ]
    assert load_curves(log.metrics.parent)["tokens_per_second"].steps == list(range(1, 23))


def test_what_needs_no_cut_is_not_written(log):
    before = log.metrics.stat()
    with full_disk(after=200):
        log.truncate(20)
    assert log.metrics.stat().st_ino == before.st_ino
    assert log.metrics.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize(
    "torn",
    [b'{"step": 21, "lo', b'{"step": 21, "prompt": "\xc3', b"\0\0\0\0", b"[1]\n", b"7", b"[" * 200_000 + b"\n"],
    ids=range(6),
)
def test_what_a_crash_has_torn_is_dropped(log, tmp_path, torn):
    whole = entries(log)
    for path in (log.metrics, log.timings):
        path.write_bytes(path.read_bytes() + torn)
    if not torn.endswith(b"\n"):  # it may still be in the writing, which need not keep anybody from looking
        assert load_curves(tmp_path)["loss"].steps[-1] == 20
    log.truncate(25)
    assert entries(log) == whole


@pytest.mark.parametrize("line", ["[1]", '{"step": null}', '"step"', "\xe9"])
def test_what_is_no_entry_is_named(log, tmp_path, line):
    log.timings.write_bytes(line.encode("latin-1") + b"\n" + log.timings.read_bytes())
    with pytest.raises(InputError, match="timings.jsonl, line 1: not a log entry"):
        load_curves(tmp_path)


DAMAGED = {
    "infinite step": b'{"step": 1e999, "loss": 1.0}',
    "step of 400 digits": b'{"step": %s, "loss": 1.0}' % (b"9" * 400),
    "step of 5,000 digits": b'{"step": %s, "loss": 1.0}' % (b"9" * 5000),
    "step that is a text": b'{"step": "3", "loss": 1.0}',
    "lone surrogate": b'{"step": 3, "prompt": "\xed\xa0\x80", "sample": ""}',
    "a list": b"[1]",
    "deep": b"[" * 100_000,
    "bytes": bytes(range(128, 256)),
}


@pytest.mark.parametrize("line", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_line_is_no_entry_and_costs_no_other(log, tmp_path, line):
    whole = log.metrics.read_bytes().splitlines(keepends=True)
    log.metrics.write_bytes(b"".join([*whole[:4], line + b"\n", *whole[4:]]))
    assert read_expert_load(tmp_path, step=9) == {}
    if b"\xed" not in line:  # which JSON of bytes lets pass
        with pytest.raises(InputError, match=r"metrics.jsonl, line 5: not a log entry$"):
            load_curves(tmp_path)
    log.back_up()
    log.restore_backup()
    log.truncate(15)
    left = [kept for kept in log.metrics.read_bytes().splitlines(keepends=True) if kept != line + b"\n"]
    assert left == [kept for kept in whole if json.loads(kept)["step"] <= 15]


@pytest.mark.parametrize("value", [b"1e999", b"-1e999", b"NaN", b"9" * 400, b"1e308", b"-1e308", b'"1"', b"[]", b"{}"])
def test_what_is_not_finite_to_draw_is_left_out_of_a_curve(log, tmp_path, value):
    whole = log.metrics.read_bytes()
    log.metrics.write_bytes(whole + b'{"step": 21, "loss": %s}\n{"step": 22, "loss": 1.5}\n' % value)
    curve = load_curves(tmp_path)["loss"]
    assert curve.steps == [*range(1, 21), 22]
    assert (
        len(plot_curves({"": (curve.steps, curve.values)}, title="", width=40, height=4, colour=False).splitlines())
        == 7
    )


@pytest.mark.parametrize("use", [b"3", b'{"a": 3}', b'{"a": ["b"]}', b'{"a": [null]}', b"[]"])
def test_a_damaged_use_of_experts_is_none(log, tmp_path, use):
    with log.metrics.open("ab") as file:
        file.write(b'{"step": 7, "validation_expert_use": {"layer": [0.25, 0.75]}}\n')
        file.write(b'{"step": 8, "validation_expert_use": %s}\n' % use)
    assert read_expert_load(tmp_path, step=9) == {"layer": [0.25, 0.75]}
