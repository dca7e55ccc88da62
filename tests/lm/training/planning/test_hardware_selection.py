"""What a run trains in: measured where nothing is said, written down, and only read afterwards."""

import dataclasses
import json
import time

import numpy as np
import pytest
import torch

from lm.config.hardware import HardwareConfig
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.config.training import TrainingConfig
from lm.data.batch import Batch
from lm.hardware import MAX_THREADS, Hardware, native_dtypes, select_inference_hardware
from lm.optim.muon import Muon
from lm.training.loop import train
from lm.training.planning import hardware_selection
from lm.training.planning.hardware_selection import select_fastest, select_training_hardware
from lm.training.startup import resume_run
from tests.lm.training.conftest import metrics_lines, stop_after, sums


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


def test_work_is_tried_in_sizes_as_large_as_there_is_time_for(monkeypatch):
    monkeypatch.setattr(
        hardware_selection.time, "perf_counter", lambda: sum(seconds[choice] * size for choice, size in asked)
    )
    seconds = {"a": hardware_selection._SECONDS / 30, "b": hardware_selection._SECONDS / 60}
    work, asked = taking(seconds)
    assert select_fastest(["a", "b"], work, SIZES) == "b"
    assert {1} <= {size for _, size in asked} < set(SIZES)
    seconds = {"a": 1e-9, "b": 1e-9}
    work, asked = taking(seconds)
    select_fastest(["a", "b"], work, SIZES)
    assert {size for _, size in asked} == set(SIZES)


def test_a_slow_moment_of_the_machine_slows_all_choices_alike():
    moments = iter([1, 1, 1, 1, 1, 1, 50, 50, 1, 1, 9, 9] + [1] * 100)

    def work(choice: float, size: int) -> float:
        return choice * size * next(moments)

    assert select_fastest([1.0, 0.5], work, [1]) == 0.5


def test_one_choice_needs_no_measuring():
    assert select_fastest(["only"], lambda *_: pytest.fail("was measured"), SIZES) == "only"


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


def test_the_first_of_the_types_is_float32():
    """So that nearly equal ones leave it at that."""
    assert native_dtypes("cpu")[0] == "float32"


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
        patch.setattr("lm.training.startup.select_training_hardware", lambda *_: planned)
        whole, stopped = (make_run(name, optimizer="muon", steps=8) for name in ("whole", "stopped"))
    for run in (whole, stopped):
        run.config = dataclasses.replace(run.config, hardware=HardwareConfig(device="cpu", dtype="float32"))
        run.write_config()
    list(train(whole))
    list(train(stopped, stop=stop_after(3)))
    resumed = resume_run(stopped.folder)
    assert (resumed.config.hardware.dtype, resumed.plan.optimizer_dtype) == ("float32", "bfloat16")
    list(train(resumed))
    assert metrics_lines(resumed) == metrics_lines(whole)
    assert sums(resumed)["model.safetensors"] == sums(whole)["model.safetensors"]


def test_a_part_of_a_batch_keeps_its_lengths():
    batch = Batch(IDS, IDS, IDS, np.array([12, 3, 5, 9])).truncate(rows=3, length=4)
    assert batch.inputs.shape == batch.targets.shape == (3, 4)
    assert batch.source is not None
    assert batch.source.shape == (3, 4)
    assert batch.source_lengths.tolist() == [4, 3, 4]
    assert dataclasses.replace(batch.with_vocab_size(10)).inputs.max() < 10


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        # of 3 seconds: a round is 0.5 s, and after the warm-up and another, 2 s are left, less than
        # three of double the size; the rounds that follow end when time is up
        (0.25, {1: 1 + 5}),
        # after the first two rounds there is just the time for three of double the size
        (0.1875, {1: 1 + 1, 2: 3}),
        # no time at all: three rounds nevertheless
        (3.0, {1: 1 + 3}),
        # all the time there is: 15 rounds of the last size
        (0.0, {1: 1 + 1, 2: 1, 4: 1, 8: 15}),
    ],
)
def test_tries_by_hand(monkeypatch, seconds, expected):
    work, asked = taking({"a": seconds, "b": seconds})
    monkeypatch.setattr(hardware_selection, "_SECONDS", 3.0)
    monkeypatch.setattr(hardware_selection, "_MAX_SECONDS", 1e9)
    monkeypatch.setattr(hardware_selection.time, "perf_counter", lambda: sum(seconds * size for _, size in asked))
    if not seconds:
        work = lambda choice, size: asked.append((choice, size)) or 1e-9  # noqa: E731
    assert select_fastest(["a", "b"], work, SIZES) == "a"
    assert asked == [(choice, size) for size, times in expected.items() for _ in range(times) for choice in "ab"]


def test_work_that_takes_too_long_is_tried_once():
    """One choice of two takes all the time there is, as with several threads beside another process."""
    work, asked = taking({"a": 1.0, "b": 0.5})

    def slow(choice: str, size: int) -> float:
        time.sleep(hardware_selection._MAX_SECONDS / 2)
        return work(choice, size)

    assert select_fastest(["a", "b"], slow, SIZES) == "b"
    assert asked == [("a", 1), ("b", 1)] * 2


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_types_of_the_model_and_of_muon_and_threads_are_chosen_one_after_the_other(monkeypatch, optimizer):
    offered = []

    def last(choices, seconds, sizes):
        offered.append(([(each.dtype, each.optimizer_dtype, each.threads) for each in choices], sizes))
        assert seconds(choices[-1], sizes[0]) > 0
        return choices[-1]

    monkeypatch.setattr(hardware_selection, "select_fastest", last)
    monkeypatch.setattr(hardware_selection, "native_dtypes", lambda device: ("float32", "bfloat16"))
    monkeypatch.setattr(hardware_selection, "MAX_THREADS", 6)
    model = ModelConfig(vocab_size=50, context_length=16, d_model=16, n_layers=3, n_heads=2)
    config = RunConfig(model, training=TrainingConfig(optimizer=optimizer), hardware=HardwareConfig(device="cpu"))
    before = torch.get_num_threads()
    try:
        found = select_training_hardware(config, Batch(np.tile(IDS, (10, 1)), np.tile(IDS, (10, 1))))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    of_muon = "bfloat16" if optimizer == "muon" else "float32"
    assert (found.device, found.dtype, found.optimizer_dtype, found.threads) == ("cpu", "bfloat16", of_muon, 1)
    threads = MAX_THREADS
    types = ([("float32", "float32", threads), ("bfloat16", "float32", threads)], [480])
    of_optimizer = ([("bfloat16", "float32", threads), ("bfloat16", "bfloat16", threads)], [1, 2, 4, 8, 16])
    numbers = ([("bfloat16", of_muon, number) for number in (6, 4, 2, 1)], [480])
    assert offered == [types, *([of_optimizer] if optimizer == "muon" else []), numbers]


@pytest.mark.parametrize(("tokens", "shape"), [(8, (1, 8)), (12, (1, 12)), (23, (1, 12)), (24, (2, 12)), (48, (4, 12))])
@pytest.mark.parametrize("n_encoder_layers", [0, 2])
def test_a_layer_of_a_small_vocabulary_is_tried_with_so_many_tokens(monkeypatch, tokens, shape, n_encoder_layers):
    seen = []

    def watched(model, part, hardware):
        seen.append((part.inputs.shape, model.config, part))
        return model.embedding.tokens.weight.sum()

    monkeypatch.setattr(hardware_selection, "summed_loss", watched)
    model = ModelConfig(vocab_size=9999, d_model=16, n_layers=3, n_heads=2, n_encoder_layers=n_encoder_layers)
    probe = hardware_selection._Probe(
        model, Batch(IDS * 1000, IDS), select_inference_hardware(HardwareConfig(device="cpu"))
    )
    assert probe.sizes == [48]
    assert probe.seconds(select_inference_hardware(HardwareConfig(device="cpu")), tokens) > 0
    ((found, config, part),) = seen
    assert found == shape
    assert (config.n_layers, config.n_encoder_layers, config.vocab_size) == (1, min(1, n_encoder_layers), 4096)
    assert part.inputs.max() < 4096
