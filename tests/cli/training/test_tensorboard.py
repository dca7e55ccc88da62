"""What is written for TensorBoard, read with TensorBoard's own reader and held against the run's logs."""

import json
import sys
from pathlib import Path

import pytest

from cli.main import run
from lm.training import run_summaries
from tests.system.conftest import SMALL
from tests.tolerances import approx

CURVES = (
    "loss", "nll", "learning_rate", "gradient_norm", "tokens_per_second", "validation_loss",
    "validation_bits_per_byte",
)  # fmt: skip
LENGTH = ("--steps", "6", "--evaluate-every", "2", "--sample", "the fox")


@pytest.fixture
def train(tmp_path, monkeypatch):
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 100)

    def trained(*flags: str) -> Path:
        assert run(["train", str(text), "-o", str(tmp_path / "run"), *SMALL, *LENGTH, *flags]) == 0
        return tmp_path / "run"

    return trained


def read(folder: Path):
    """TensorBoard's own reading of a run, nothing left out."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    everything = {accumulator.SCALARS: 0, accumulator.TENSORS: 0}
    events = accumulator.EventAccumulator(str(folder / "tensorboard"), size_guidance=everything)
    events.Reload()
    return events


def assert_equals_the_log(folder: Path) -> None:
    events, log = read(folder), run_summaries.load_curves(folder)
    assert set(events.Tags()["scalars"]) == set(CURVES)
    for name in CURVES:
        shown = events.Scalars(name)
        assert [event.step for event in shown] == log[name].steps
        assert [event.value for event in shown] == approx(log[name].values, terms=1)


def test_curves_and_samples_are_those_of_the_log(train):
    folder = train("--tensorboard")
    assert_equals_the_log(folder)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    samples = [line["sample"] for line in lines if "sample" in line]
    shown = read(folder).Tensors("sample/the fox/text_summary")
    assert len(samples) == len(shown) == 3
    texts = [event.tensor_proto.string_val[0].decode() for event in shown]
    assert texts == ["".join(f"    {line}\n" for line in sample.split("\n")) for sample in samples]


def test_a_resumed_run_continues_with_it_and_doubles_nothing(train):
    """Steps after the checkpoint that is resumed are shown once, without asking for it again."""
    folder = train("--tensorboard")
    assert run(["train", "--resume", str(folder / "checkpoints" / "step-2"), "--steps", "8"]) == 0
    assert [event.step for event in read(folder).Scalars("loss")] == list(range(1, 9))
    assert_equals_the_log(folder)


def test_a_resumed_run_can_begin_with_it_or_leave_off(train):
    folder = train()
    assert not (folder / "tensorboard").exists()
    assert run(["train", "--resume", str(folder), "--steps", "7", "--tensorboard"]) == 0
    assert [event.step for event in read(folder).Scalars("loss")] == [7]
    assert run(["train", "--resume", str(folder), "--steps", "8", "--no-tensorboard"]) == 0
    assert [event.step for event in read(folder).Scalars("loss")] == [7]


def test_without_tensorboard_one_line_says_so_before_anything_is_made(tmp_path, monkeypatch, capsys):
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox\n" * 100)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    assert run(["train", str(text), "-o", str(tmp_path / "run"), "--tensorboard"]) == 1
    assert capsys.readouterr().err == "lm: --tensorboard needs tensorboard: pip install tensorboard\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.txt"]
