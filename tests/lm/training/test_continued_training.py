"""Training from another run's weights, or beyond a run's end, leaves no worse model behind, and says if it helped."""

import dataclasses
from pathlib import Path

import pytest
import torch

from lm import run_folder
from lm.checkpoint import load_weights
from lm.config.run_config import LoraConfig, RunConfig, TrainingConfig
from lm.config.run_spec import run_spec
from lm.hardware import Hardware
from lm.training.loop import train
from lm.training.plan import Measured, Plan, plan_length, plan_spec
from lm.training.rules import TrainingSpeed
from lm.training.run import Run, initial_weights, measure_initial_loss
from lm.training.run_log import Evaluation, Step
from lm.training.training_corpus import TrainingCorpus
from tests.lm.training.conftest import metrics_lines, new_run, stop_after, sums
from tests.lm.training.runs import resume_run, start_run
from tests.lm.training.test_masked import begun, corpus, examples  # noqa: F401 (fixtures)

RUINOUS = {"learning_rate": 5.0, "warmup_steps": 0}


@pytest.fixture(scope="module")
def parent(tmp_path_factory, shards, byte_tokenizer) -> Run:
    run = new_run(tmp_path_factory.mktemp("runs") / "parent", shards, byte_tokenizer, learning_rate=5e-3, steps=30)
    list(train(run))
    return run


@pytest.fixture
def tune(parent, tmp_path, shards, byte_tokenizer):
    """Start a run with the weights of `parent`."""

    def begin(name: str = "tuned", *, lora: LoraConfig | None = None, **training: object) -> Run:
        settings = dataclasses.replace(parent.config.training, **{"steps": 12, "learning_rate": 1e-3, **training})
        config = dataclasses.replace(parent.config, training=settings, lora=lora or LoraConfig())
        found, data = run_folder.find_checkpoint(parent.folder), TrainingCorpus(shards, byte_tokenizer)
        return start_run(tmp_path / name, config, data, from_run=found)

    return begin


def same(ours: Path, theirs: Path) -> bool:
    """Whether two runs, or checkpoints, have the same weights, adapters added in."""
    weights, others = load_weights(ours), load_weights(theirs)
    return weights.keys() == others.keys() and all(torch.equal(value, others[name]) for name, value in weights.items())


@pytest.mark.parametrize(
    ("lora", "settings"),
    [(None, {}), (LoraConfig(rank=2), {}), (None, {"ema": 0.9}), (None, {"optimizer": "muon", "checkpoint_every": 0})],
)
def test_a_run_that_ends_no_better_than_it_began_has_the_weights_of_its_parent(parent, tune, lora, settings):
    run = tune(lora=lora, **{**RUINOUS, **settings})
    events = list(train(run))
    assert isinstance(events[0], Evaluation)
    assert (events[0].step, events[0].is_best) == (0, True)
    assert events[0].loss == pytest.approx(parent.state.best_loss, rel=1e-6)
    assert run.state.best_step == 0
    assert run_folder.find_checkpoint(run.folder).name == "step-0"
    assert same(run.folder, parent.folder)


def test_the_initial_loss_is_the_best_one_of_the_parent(parent):
    """From which the learning rate of fine-tuning follows."""
    found = measure_initial_loss(parent.config, load_weights(parent.folder), parent.data)
    assert found == pytest.approx(parent.state.best_loss, rel=1e-5)


@pytest.mark.parametrize("stop", [1, 5])
@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)])
def test_an_interrupted_run_resumes_exactly(tune, lora, stop):
    whole, parts = tune("whole", lora=lora, ema=0.8), tune("parts", lora=lora, ema=0.8)
    list(train(whole))
    list(train(parts, stop=stop_after(stop)))
    parts = resume_run(parts.folder)
    list(train(parts))
    assert sums(whole)["model.safetensors"] == sums(parts)["model.safetensors"]
    assert sums(whole)["optimizer.safetensors"] == sums(parts)["optimizer.safetensors"]
    assert metrics_lines(whole) == metrics_lines(parts)


def test_a_new_head_is_not_evaluated_before_it_has_learned(tmp_path, corpus, examples):  # noqa: F811
    first = begun(tmp_path / "masked", corpus)
    list(train(first))
    found = run_folder.find_checkpoint(first.folder)

    def begin(name: str, data: TrainingCorpus, weights: Path) -> Run:
        return begun(tmp_path / name, data, from_run=weights, steps=4, evaluate_every=2)

    labels = begin("labels", examples, found)
    assert 0 not in [event.step for event in train(labels) if isinstance(event, Evaluation)]
    again = begin("again", examples, labels.folder)
    assert 0 in [event.step for event in train(again) if isinstance(event, Evaluation)]
    other = again.config.replace(model=again.config.model.replace(labels=("p", "q", "r")))
    kept = initial_weights(again.folder, (again.tokenizer, None), other)
    assert not [name for name in kept if name.startswith("classifier")]
    more = begin("more", corpus, found)
    assert 0 in [event.step for event in train(more) if isinstance(event, Evaluation)]


def chosen(data: object, *, losses: tuple[float | None, float | None], **given: object) -> Plan:
    parent = RunConfig(training=TrainingConfig(optimizer="muon", steps=1))
    plan = plan_spec(run_spec("text.txt", from_run="runs/base", **given), parent=parent)
    speed = TrainingSpeed(1.0, 0.1, 0.0, Hardware("cpu", "float32", 1))
    return plan_length(plan, None, data, Measured(speed, 100.0, losses=(*losses, None)))[0]


@pytest.fixture
def data(make_run):
    found = make_run().data
    found.steps_per_epoch = 100.0
    return found


@pytest.mark.parametrize(("steps_per_epoch", "steps"), [(100.0, 300), (10.0, 50), (2.0, 20), (5000.0, 2000)])
def test_small_data_are_seen_more_often_up_to_ten_times(data, steps_per_epoch, steps):
    data.steps_per_epoch = steps_per_epoch
    assert chosen(data, losses=(3.2, 3.0)).config.training.steps == steps


def test_the_further_the_text_the_higher_the_learning_rate_and_never_above_the_peak(data):
    losses = [3.0, 3.0 + 1e-9, 3.5, 4.0, 5.0, 6.0, 9.0]
    rates = [chosen(data, losses=(loss, 3.0)).config.training.learning_rate for loss in losses]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1] <= 0.02
    assert rates[0] == rates[1]  # no threshold that rounding could cross
    assert chosen(data, losses=(1.0, 3.0)).config.training.learning_rate == rates[0]
    for unknown in ((None, 3.0), (3.0, None), (None, None)):
        assert rates[0] <= chosen(data, losses=unknown).config.training.learning_rate <= rates[-1]


@pytest.mark.parametrize(
    ("given", "kept"),
    [({"learning_rate": 0.7}, {"learning_rate": 0.7}), ({"epochs": 2.0}, {"epochs": 2.0, "steps": None}),
     ({"warmup_steps": 33}, {"warmup_steps": 33}), ({"optimizer": "adamw"}, {"optimizer": "adamw"}),
     ({"budget": "9m"}, {"budget": "9m", "steps": None})],
)  # fmt: skip
def test_what_is_given_wins_and_all_else_is_chosen(data, given, kept):
    alone, other = (chosen(data, losses=(3.2, 3.0), **more) for more in ({}, given))
    training = other.config.training
    assert {name: getattr(training, name) for name in kept} == kept
    for name in {"learning_rate", "steps", "optimizer"} - given.keys() - kept.keys():
        if name != "learning_rate" or "optimizer" not in given:
            assert getattr(training, name) == getattr(alone.config.training, name)
    assert training.warmup_steps == 10 or "budget" not in given
    (name,) = given
    assert other.reasons[f"training.{name}"] == "python"
    assert alone.reasons["training.learning_rate"] == "loss on the new data"


def rates(run: Run) -> list[float]:
    return [event.learning_rate for event in train(run) if isinstance(event, Step)]


@pytest.mark.medium
@pytest.mark.parametrize("schedule", ["linear", "cosine", "wsd"])
@pytest.mark.parametrize("stop", [None, 10])
def test_the_rate_of_an_extended_run_falls_from_where_it_is_or_from_a_fraction_of_its_peak(make_run, schedule, stop):
    run = make_run(schedule=schedule, learning_rate=1e-2, final_learning_rate_fraction=0.0, decay_fraction=0.5)
    first = (
        rates(run) if stop is None else [e.learning_rate for e in train(run, stop=stop_after(stop)) if type(e) is Step]
    )
    again = rates(resume_run(run.folder, new_length=TrainingConfig(steps=40)))
    assert again == sorted(again, reverse=True)
    assert again[0] <= max(first[-1], 0.25e-2)
    assert 0 < again[-1] < 1e-3
