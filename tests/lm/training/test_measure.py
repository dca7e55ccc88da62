"""What is timed is a step of training on random tokens, and what it leaves behind is nothing."""

import torch

from lm.config.model import ModelConfig
from lm.config.run_config import HardwareConfig, RunConfig, TrainingConfig
from lm.training.measure import random_run, training_step_timer

MODEL = ModelConfig(vocab_size=64, context_length=16, d_model=32, n_layers=1, n_heads=2)
CONFIG = RunConfig(
    model=MODEL,
    training=TrainingConfig(steps=9, batch_size=4, micro_batch_size=2),
    hardware=HardwareConfig(device="cpu", dtype="float32"),
    preset="minute",
)


def test_the_step_is_that_of_training_and_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = random_run(CONFIG, rows=3)
    before = run.model.embedding.tokens.weight.clone()
    step = training_step_timer(run)
    assert step() > 0
    assert step() > 0
    assert (run.state.step, run.state.tokens) == (2, 2 * 3 * 16)
    assert not torch.equal(run.model.embedding.tokens.weight, before)
    batch = run.data.batch(0)
    assert batch.inputs.shape == (3, 16)
    assert 0 <= batch.inputs.min() <= batch.inputs.max() < 64
    assert run.config.model == MODEL
    assert not list(tmp_path.iterdir())
