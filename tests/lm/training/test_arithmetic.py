"""What a run trains in: measured where nothing is said, written down, and only read afterwards."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from lm.config import HardwareConfig, ModelConfig, RunConfig, TrainingConfig
from lm.data.batches import Batch
from lm.hardware import MOST_THREADS, quick_types
from lm.training import arithmetic
from lm.training.arithmetic import fastest, training_hardware
from lm.training.muon import Muon
from lm.training.run import resume
from lm.training.trainer import train


@pytest.fixture
def the_first_is_fastest():
    """Here it is not: what is fastest is measured."""


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
    [({"a": 3.0, "b": 1.0, "c": 2.0}, "b"), ({"a": 1.0, "b": 2.0}, "a"), ({"a": 1.0, "b": 0.97}, "a")],
)
def test_what_clearly_takes_least_is_chosen_and_else_the_first(seconds, found):
    work, _ = taking(seconds)
    assert fastest(list(seconds), work, SIZES) == found


def test_work_is_tried_in_sizes_as_large_as_there_is_time_for(monkeypatch):
    monkeypatch.setattr(arithmetic.time, "perf_counter", lambda: sum(seconds[choice] * size for choice, size in asked))
    seconds = {"a": arithmetic._SECONDS / 30, "b": arithmetic._SECONDS / 60}
    work, asked = taking(seconds)
    assert fastest(["a", "b"], work, SIZES) == "b"
    assert {1} <= {size for _, size in asked} < set(SIZES)
    seconds = {"a": 1e-9, "b": 1e-9}
    work, asked = taking(seconds)
    fastest(["a", "b"], work, SIZES)
    assert {size for _, size in asked} == set(SIZES)


def test_a_slow_moment_of_the_machine_slows_all_choices_alike():
    moments = iter([1, 1, 1, 1, 1, 1, 50, 50, 1, 1, 9, 9] + [1] * 100)

    def work(choice: float, size: int) -> float:
        return choice * size * next(moments)

    assert fastest([1.0, 0.5], work, [1]) == 0.5


def test_one_choice_needs_no_measuring():
    assert fastest(["only"], lambda *_: pytest.fail("was measured"), SIZES) == "only"


@pytest.mark.parametrize("is_encoder_decoder", [False, True])
def test_what_is_said_is_not_measured(is_encoder_decoder):
    model = ModelConfig(vocab_size=50, context_length=16, d_model=16, n_layers=3, n_heads=2,
                        n_encoder_layers=2 * is_encoder_decoder)  # fmt: skip
    batch = Batch(IDS, IDS, IDS, np.full(4, 12)) if is_encoder_decoder else Batch(IDS, IDS)
    for dtype in ("float32", "bfloat16"):
        config = RunConfig(model, hardware=HardwareConfig(device="cpu", dtype=dtype, threads=1))
        assert training_hardware(config, batch).dtype == dtype
        assert torch.get_num_threads() == 1
    free = training_hardware(RunConfig(model, training=TrainingConfig(optimizer="muon")), batch)
    assert {free.dtype, free.optimizer_dtype} <= set(quick_types(free.device))
    assert 1 <= free.threads == torch.get_num_threads() <= MOST_THREADS


def test_the_first_of_the_types_is_float32():
    """So that nearly equal ones leave it at that."""
    assert quick_types("cpu")[0] == "float32"


def test_a_resumed_run_reads_what_was_chosen(make_run, monkeypatch):
    run = make_run(optimizer="muon", steps=4, evaluate_every=2)
    next(train(run, stop=lambda: True))
    list(train(run, stop=lambda: True))
    for path in run.folder.rglob("config.json"):
        config = json.loads(path.read_text())
        config["plan"] |= {"dtype": "bfloat16", "optimizer_dtype": "float32"}
        path.write_text(json.dumps(config))
    monkeypatch.setattr(arithmetic, "fastest", lambda *_: pytest.fail("was measured again"))
    monkeypatch.setattr("lm.checkpoint.verify", lambda folder: None)  # the sums are of what was there before
    again = resume(run.folder)
    assert (again.hardware.dtype, again.hardware.optimizer_dtype) == ("bfloat16", "float32")
    (muon,) = [optimizer for optimizer in again.optimizers if isinstance(optimizer, Muon)]
    assert muon._dtype is torch.float32


def test_a_part_of_a_batch_keeps_its_lengths():
    batch = Batch(IDS, IDS, IDS, np.array([12, 3, 5, 9])).part(rows=3, length=4)
    assert batch.inputs.shape == batch.targets.shape == (3, 4)
    assert batch.source is not None
    assert batch.source.shape == (3, 4)
    assert batch.source_lengths.tolist() == [4, 3, 4]
    assert dataclasses.replace(batch.within(10)).inputs.max() < 10
