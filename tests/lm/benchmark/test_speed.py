"""What is measured is what lm does, and the figures fit together; none of these tests is about speed."""

import math

import pytest
import torch

from lm.benchmark import hugging_face
from lm.benchmark.hardware_limits import HardwareLimits
from lm.benchmark.speed import CONCURRENCY, MEASUREMENTS_PER_MODEL, measure_speed
from lm.config.hardware import HardwareConfig
from lm.config.model import ModelConfig
from lm.config.presets import build_run_config
from lm.config.run_config import RunConfig
from lm.config.training import TrainingConfig
from lm.model.cost import training_flops_per_token
from lm.training.measure import random_run, training_step_timer

MODEL = ModelConfig(vocab_size=64, context_length=16, d_model=32, n_layers=1, n_heads=2)
CONFIG = RunConfig(
    model=MODEL,
    training=TrainingConfig(steps=9, batch_size=4, micro_batch_size=2),
    hardware=HardwareConfig(device="cpu", dtype="float32"),
    preset="minute",
)
LIMITS = HardwareLimits(1024, {"float32": 1e12}, 1e10)


@pytest.fixture(scope="module", params=[False, True], ids=["alone", "compared"])
def found(request):
    told: list[str] = []
    measured = list(measure_speed(CONFIG, LIMITS, seconds=0, compare=request.param, progress=told.append))
    assert len(told) == len(measured) == MEASUREMENTS_PER_MODEL
    return request.param, measured


def test_each_task_is_measured_in_its_shape(found):
    _, measured = found
    assert [each.task for each in measured] == ["training", "prefill", *["decoding"] * len(CONCURRENCY)]
    assert [each.rows for each in measured] == [4, 1, *CONCURRENCY]
    assert [each.timed_rows for each in measured] == [1, None, *[None] * len(CONCURRENCY)]
    assert [each.length for each in measured][:2] == [16, 8]
    assert all(1 <= each.length < 8 for each in measured[2:])
    assert {each.hardware.dtype for each in measured} == {"float32"}


def test_figures_are_positive_finite_and_fit_together(found):
    _, measured = found
    for each in measured:
        figures = (each.timings.seconds, each.flops, each.tokens_per_second, each.utilisation)
        assert all(figure > 0 and math.isfinite(figure) for figure in figures)
        assert each.tokens_per_second * each.timings.seconds == pytest.approx(each.rows * each.length)
        assert each.utilisation * each.limit * each.timings.seconds == pytest.approx(each.flops)
        assert each.peak_bytes is None
    assert measured[0].flops == pytest.approx(measured[0].tokens * training_flops_per_token(MODEL))


def test_a_comparison_has_the_other_side_too(found):
    compared, measured = found
    for each in measured:
        assert (each.timings.ratio is not None) == compared
        if compared:
            assert each.timings.rounds == 1
            assert each.timings.ratio == pytest.approx(each.tokens_per_second / each.baseline_tokens_per_second)


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


def test_hugging_face_has_the_shape():
    config = build_run_config("nanogpt-cpu").model
    theirs = hugging_face.gpt2(config)
    assert theirs.config.n_layer == config.n_layers
    assert theirs.config.n_head == config.n_heads
    assert theirs.transformer.wte.weight.shape == (config.vocab_size, config.d_model)
    assert theirs.transformer.wpe.weight.shape == (config.context_length, config.d_model)
