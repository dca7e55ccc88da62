"""What is timed is a step of training on random tokens, and what it leaves behind is nothing."""

import dataclasses

import torch

from lm.config.hardware import HardwareConfig
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.config.training import TrainingConfig
from lm.training import step_timing
from lm.training.planning.budget import EvaluationCost
from lm.training.step_timing import random_data_run, training_step_timer
from lm.training.training_corpus import TrainingCorpus, open_data

MODEL = ModelConfig(vocab_size=64, context_length=16, d_model=32, n_layers=1, n_heads=2)
CONFIG = RunConfig(
    model=MODEL,
    training=TrainingConfig(steps=9, batch_size=4, micro_batch_size=2),
    hardware=HardwareConfig(device="cpu", dtype="float32"),
    preset="minute",
)


def test_the_step_is_that_of_training_and_leaves_nothing_behind():
    with random_data_run(CONFIG, rows=3) as run:
        before = {name: value.clone() for name, value in run.model.state_dict().items()}
        step = training_step_timer(run)
        assert step() > 0
        assert step() > 0
        assert (run.state.step, run.state.tokens) == (2, 2 * 3 * 16)
        after = run.model.state_dict()
        assert not any(torch.equal(after[name], before[name]) for name in ("embedding.tokens.weight",))
        batch = run.data.batch(0)
        assert batch.inputs.shape == (3, 16)
        assert 0 <= batch.inputs.min() <= batch.inputs.max() < 64
        assert run.config.model == MODEL
        folder = run.folder
        assert folder.is_dir()
    assert not folder.exists()


def test_the_pace_is_that_of_a_run_on_its_own_data_and_what_evaluating_it_takes(monkeypatch, tmp_path):
    """A step is made to take a quarter of a second; a quarter of the time goes into what an evaluation takes."""
    asked = []

    def step_seconds(run, *, seconds):
        asked.append((run.config.training, seconds))
        return 0.25

    def cost(run, *, seconds):
        asked.append(seconds)
        return EvaluationCost(loss_seconds=3.0, sentence_seconds=0.5)

    monkeypatch.setattr(step_timing, "measure_step_seconds", step_seconds)
    monkeypatch.setattr(step_timing, "measure_cost", cost)
    tokenizer = step_timing.placeholder_tokenizer(64)
    step_timing.write_random_tokens(tmp_path / "tokens", tokens=500, vocab_size=64)
    budgeted = TrainingConfig(
        budget="1m", schedule="wsd", batch_size=2, evaluate_every=3, checkpoint_every=2, patience=4
    )
    config = dataclasses.replace(CONFIG, training=budgeted)
    opened = open_data(tmp_path / "tokens", config)
    found = step_timing.measure_training_speed(
        config, TrainingCorpus(tmp_path / "tokens", tokenizer), opened, seconds=8.0
    )
    assert (found.step_seconds, found.evaluation_cost, found.hardware.dtype) == (
        0.25,
        EvaluationCost(3.0, 0.5),
        "float32",
    )
    (endless, for_steps), for_evaluation = asked
    assert (for_steps, for_evaluation) == (8.0, 2.0)
    assert (endless.batch_size, endless.evaluate_every, endless.checkpoint_every) == (2, 0, 0)
    assert (endless.budget, endless.patience) == (None, None)
    assert endless.steps > 1e12
