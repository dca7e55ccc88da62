"""What a run trains in: measured where nothing is said, written down, and only read afterwards."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from lm.config.hardware import HardwareConfig
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.config.training import TrainingConfig
from lm.data.batch import Batch
from lm.hardware import MAX_THREADS, Hardware, native_dtypes
from lm.optim.muon import Muon
from lm.training.loop import train
from lm.training.planning import hardware_selection
from lm.training.planning.hardware_selection import select_fastest, select_training_hardware
from tests.lm.training.conftest import metrics_lines, stop_after, sums
from tests.lm.training.runs import resume_run


@pytest.fixture(autouse=True)
def measured(monkeypatch):
    """Here what is fastest is measured, not the first choice."""
    monkeypatch.setattr(hardware_selection, "select_fastest", select_fastest)


SIZES = [1, 2, 4, 8]
IDS = np.arange(48).reshape(4, 12)


def taking(seconds: dict[str, float]):
    """Choices that take so many seconds for a piece of work; what was asked is noted."""
    asked = []

    def work(choice: str, size: int) -> float:
        asked.append((choice, size))
        return seconds[choice] * size

    return work, asked


@pytest.mark.parametrize(
    ("seconds", "found"),
    [
        ({"a": 3.0, "b": 1.0, "c": 2.0}, "b"),
        ({"a": 1.0, "b": 2.0}, "a"),
        ({"a": 1.0, "b": 0.97}, "a"),
        ({"a": 1.0, "b": 0.91}, "a"),
        ({"a": 1.0, "b": 0.89}, "b"),
    ],
)
def test_what_clearly_takes_least_is_chosen_and_else_the_first(seconds, found):
    work, _ = taking(seconds)
    assert select_fastest(list(seconds), work, SIZES) == found


def test_a_slow_moment_of_the_machine_slows_all_choices_alike():
    moments = iter([1, 1, 1, 1, 1, 1, 50, 50, 1, 1, 9, 9] + [1] * 100)

    def work(choice: float, size: int) -> float:
        return choice * size * next(moments)

    assert select_fastest([1.0, 0.5], work, [1]) == 0.5


@pytest.mark.parametrize("is_encoder_decoder", [False, True])
def test_what_is_said_is_not_measured(is_encoder_decoder):
    model = ModelConfig(vocab_size=50, context_length=16, d_model=16, n_layers=3, n_heads=2,
                        n_encoder_layers=2 * is_encoder_decoder)  # fmt: skip
    batch = Batch(IDS, IDS, IDS, np.full(4, 12)) if is_encoder_decoder else Batch(IDS, IDS)
    for dtype in ("float32", "bfloat16"):
        config = RunConfig(model, hardware=HardwareConfig(device="cpu", dtype=dtype, threads=1))
        assert select_training_hardware(config, batch).dtype == dtype
        assert torch.get_num_threads() == 1
        config = dataclasses.replace(config, training=TrainingConfig(optimizer="muon"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hardware_selection, "select_fastest", lambda *_: pytest.fail("was measured"))
            found = select_training_hardware(config, batch)
        assert (found.dtype, found.optimizer_dtype) == (dtype, dtype)
    free = select_training_hardware(RunConfig(model, training=TrainingConfig(optimizer="muon")), batch)
    assert {free.dtype, free.optimizer_dtype} <= set(native_dtypes(free.device))
    assert 1 <= free.threads == torch.get_num_threads() <= MAX_THREADS


def test_a_resumed_run_reads_what_was_chosen(make_run, monkeypatch):
    run = make_run(optimizer="muon", steps=4, evaluate_every=2)
    next(train(run, stop=lambda: True))
    list(train(run, stop=lambda: True))
    for path in run.folder.rglob("config.json"):
        config = json.loads(path.read_text())
        config["plan"] |= {"dtype": "bfloat16", "optimizer_dtype": "float32"}
        path.write_text(json.dumps(config))
    monkeypatch.setattr(hardware_selection, "select_fastest", lambda *_: pytest.fail("was measured again"))
    monkeypatch.setattr(
        "lm.run_folder.verify_checkpoint", lambda folder, **_: None
    )  # the sums are of what was there before
    again = resume_run(run.folder)
    assert (again.hardware.dtype, again.hardware.optimizer_dtype) == ("bfloat16", "float32")
    (muon,) = [optimizer for optimizer in again.optimizers if isinstance(optimizer, Muon)]
    assert muon._dtype is torch.float32


def test_a_run_that_was_planned_with_another_dtype_of_muon_continues_with_it(make_run, monkeypatch):
    """Float32 was asked for, and Muon's matmuls were planned in bfloat16: bit for bit as if it had never stopped."""
    with monkeypatch.context() as patch:
        planned = Hardware("cpu", "float32", 1, "bfloat16")
        patch.setattr(hardware_selection, "select_training_hardware", lambda *_: planned)
        whole, stopped = (make_run(name, optimizer="muon", steps=8) for name in ("whole", "stopped"))
    for run in (whole, stopped):
        run.config = dataclasses.replace(run.config, hardware=HardwareConfig(device="cpu", dtype="float32"))
    list(train(whole))
    list(train(stopped, stop=stop_after(3)))
    resumed = resume_run(stopped.folder)
    assert (resumed.config.hardware.dtype, resumed.plan.optimizer_dtype) == ("float32", "bfloat16")
    list(train(resumed))
    assert metrics_lines(resumed) == metrics_lines(whole)
    assert sums(resumed)["model.safetensors"] == sums(whole)["model.safetensors"]
