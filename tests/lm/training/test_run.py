"""A run in progress: its rate, epoch and errors follow from how far it has come; what steps and evaluations cost."""

import dataclasses
import time

import pytest
import torch

from lm import run_folder
from lm.hardware import Hardware, time_work
from lm.model.transformer import Block
from lm.optim.schedules import learning_rate
from lm.training import evaluation, step_timing
from lm.training.evaluation import evaluate, measure_cost
from lm.training.events import Evaluation
from lm.training.run import divergence_error
from lm.training.step_timing import estimate_speed, scaled_step_timer, time_interleaved
from lm.training.training_corpus import TrainingCorpus


def test_a_run_has_one_plan_which_is_written_down(make_run):
    run = make_run()
    assert run.plan is run.config.plan
    assert run_folder.load_config(run.folder) == run.config
    run.config = dataclasses.replace(run.config, plan=dataclasses.replace(run.plan, steps=7))
    assert run.plan.steps == 7
    run.write_config()
    assert run_folder.load_config(run.folder).plan == run.plan


def test_rate_and_epoch_follow_from_the_steps_taken(make_run):
    run = make_run(learning_rate=0.01)
    for step in (0, 2, 11):
        run.state = dataclasses.replace(run.state, step=step, samples=6 * step)
        assert run.learning_rate == learning_rate(step, config=run.config.training, steps=12)
        assert run.epoch == 6 * step / run.data.samples
        assert not run.is_complete
    run.state = dataclasses.replace(run.state, step=12)
    assert run.is_complete


@pytest.mark.parametrize(("step", "named"), [(None, 3), (8, 8)])
def test_what_is_not_finite_is_named_with_its_step(make_run, step, named):
    run = make_run()
    run.state = dataclasses.replace(run.state, step=3)
    message = str(divergence_error(run, "the loss is nan", step=step))
    assert message.startswith(f"{run.folder}: the loss is nan at step {named}; saved checkpoints are untouched")


@pytest.mark.parametrize(("seconds", "n_timed"), [(0.0, 1), (1.9, 1), (2.0, 2), (3.9, 2), (4.0, 3)])
def test_the_loss_of_the_whole_split_takes_what_its_first_batches_do(make_run, monkeypatch, seconds, n_timed):
    """Batches of two seconds each are timed as long as one begins in time, after a warm-up."""
    run, modes = make_run(), []
    parts = [part for batch in run.data.validation() for part in batch.split(20)]
    targets = [part.n_targets for part in parts]
    assert targets == [320, 320, 256, 5]
    monkeypatch.setattr(run.data, "validation", lambda: iter(parts))

    def timed(work, hardware):
        modes.append(run.model.training)
        assert hardware == run.hardware
        assert work().isfinite()
        return 2.0

    monkeypatch.setattr(evaluation, "time_work", timed)
    found = measure_cost(run, seconds=seconds)
    assert found.loss_seconds == pytest.approx(2.0 * n_timed * 901 / sum(targets[1 : 1 + n_timed]))
    assert found.sentence_seconds == 0
    assert modes == [False] * (1 + n_timed)
    assert run.model.training


def test_an_evaluation_says_how_long_it_took(make_run):
    run, began = make_run(), time.perf_counter()
    (found,) = (event for event in evaluate(run) if isinstance(event, Evaluation))
    assert 0 < found.seconds <= time.perf_counter() - began


def test_workloads_alternate_after_a_warm_up_round():
    done: list[str] = []

    def side(name: str):
        def work() -> float:
            done.append(name)
            return float(len(done))

        return work

    assert time_interleaved([side("ours"), side("theirs")], seconds=0) == [[3.0, 4.0]]
    assert done == ["ours", "theirs"] * 2


def test_rounds_continue_while_there_is_time():
    hardware = Hardware("cpu", "float32", 1)
    rounds = time_interleaved([lambda: time_work(lambda: sum(range(1000)), hardware)], seconds=0.05)
    assert len(rounds) > 1
    assert all(seconds > 0 for (seconds,) in rounds)


def test_a_small_model_is_measured_whole_where_an_estimate_would_do(make_run, shards, byte_tokenizer):
    run = make_run(model={"n_layers": 5})
    blocks = set()
    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda module, *_: blocks.add(module) if isinstance(module, Block) else None
    )
    with hook:
        estimate_speed(run.config, TrainingCorpus(shards, byte_tokenizer), run.data, seconds=0)
    assert len(blocks) == 5


def test_a_step_is_estimated_from_one_pass_with_one_update(monkeypatch):
    ticks = iter([1.0, 3.0])
    monkeypatch.setattr(step_timing, "synchronized_time", lambda hardware: next(ticks))
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    optimizer = torch.optim.SGD([weight], lr=0.5)

    def step() -> float:
        optimizer.step()
        return 5.0

    whole = scaled_step_timer(step, [optimizer], Hardware("cpu", "float32", 1), batch_scale=4)
    assert whole() == 4 * (5 - 2) + 2
    assert weight.tolist() == [0.5] * 3
