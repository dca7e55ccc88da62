"""A log loses no complete line, whatever is in it and whatever happens while it is cut."""

import json
from pathlib import Path

import pytest

from lm.training.events import Evaluation, Sample, Step
from lm.training.run_log import RunLog
from lm.training.run_summaries import load_curves

ANY_LINE_END = "one\u2028two\u0085three\x0bfour\rfive\nsix"


@pytest.fixture
def log(tmp_path) -> RunLog:
    """Of twenty steps, with a sample at the tenth."""
    log = RunLog(tmp_path)
    for step in range(1, 21):
        log.log_step(Step(step, 2.0, 0.1, 1.0, 64, 1e6, 0.5, 2.0), epoch=step / 20)
        if step == 10:
            log.log_event(Evaluation(step, 1.5, 2.0, 64, 0.1, is_best=True))
            log.log_event(Sample(step, "the", ANY_LINE_END))
    return log


def entries(log: RunLog) -> list[dict]:
    return [json.loads(line) for line in log.metrics.read_text().split("\n")[:-1]]


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_evaluation_of_the_step_that_a_run_resumes_at_is_kept_unless_it_comes_again(log):
    assert [log.last_validation_loss(step) for step in (9, 10, 20)] == [None, 1.5, 1.5]
    log.truncate(10)
    assert [sorted(entry.keys() & {"loss", "sample"}) for entry in entries(log)[-3:]] == [["loss"], [], ["sample"]]
    log.truncate(10, evaluation_due=True)
    assert [entry["step"] for entry in entries(log)] == list(range(1, 11))
    assert [entry["step"] for entry in read(log.timings)] == list(range(1, 11))
    assert log.last_validation_loss(20) is None


def test_a_line_ends_with_a_line_feed_alone(log, tmp_path):
    log.truncate(15)
    assert [entry["step"] for entry in entries(log)] == [*range(1, 11), 10, 10, *range(11, 16)]
    assert next(entry["sample"] for entry in entries(log) if "sample" in entry) == ANY_LINE_END
    assert load_curves(tmp_path)["loss"].steps == list(range(1, 16))


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
