"""Masked models and classifiers are trained by the loop that trains all others."""

from pathlib import Path

import numpy as np
import pytest
import torch

from lm.checkpoint import load_model, load_weights
from lm.config.model import ModelConfig
from lm.config.run_config import (
    IGNORE_INDEX,
    MASK,
    DataConfig,
    HardwareConfig,
    RunConfig,
    TokenizerConfig,
    TrainingConfig,
)
from lm.hardware import select_hardware
from lm.tokenizer import training as tokenizer_training
from lm.training.loop import train
from lm.training.objective import summed_loss, summed_loss_and_correct
from lm.training.run import Run
from lm.training.run_log import Evaluation
from lm.training.training_corpus import TrainingCorpus
from tests.lm.corpus import small_examples
from tests.lm.corpus.preparing import prepare, written
from tests.lm.training.conftest import metrics_lines, stop_after, sums
from tests.lm.training.runs import resume_run, start_run
from tests.tolerances import approx

SHAPE = {"context_length": 16, "d_model": 32, "n_layers": 2, "n_heads": 2, "dropout": 0.1, "objective": "masked"}
TOKENIZER = tokenizer_training.train([], TokenizerConfig(kind="byte"), corpus_bytes=0, special_tokens=(MASK,))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> TrainingCorpus:
    """A text in which each letter follows from its neighbours."""
    place = tmp_path_factory.mktemp("text")
    folder = prepare(written(place, "abcdefgh" * 400), TOKENIZER, DataConfig(), place / "tokens").folder
    return TrainingCorpus(folder, TOKENIZER)


@pytest.fixture(scope="module")
def examples(tmp_path_factory) -> TrainingCorpus:
    """Texts whose label is the letter that they have most."""
    place = tmp_path_factory.mktemp("examples")
    draw = np.random.default_rng(1)
    pairs = []
    for _ in range(200):
        label = draw.choice(list("xyz"))
        letters = [*draw.choice(list("xyz"), size=3), *[label] * 5]
        pairs.append(("".join(draw.permutation(letters)), str(label)))
    source = small_examples.source(place, small_examples.lines(pairs, "text", "label"))
    config = DataConfig(validation="0.2")
    return TrainingCorpus(prepare([source], TOKENIZER, config, place / "tokens").folder, TOKENIZER)


def begun(folder: Path, corpus: TrainingCorpus, *, model: dict | None = None, from_run=None, **fields) -> Run:
    settings = {"batch_size": 8, "steps": 12, "warmup_steps": 3, "evaluate_every": 5, **fields}
    config = RunConfig(
        ModelConfig(**{**SHAPE, **(model or {})}),
        training=TrainingConfig(**settings),
        data_kind=corpus.kind,
    )
    return start_run(folder, config, corpus, from_run=from_run)


@pytest.mark.medium
def test_it_learns_what_stands_between_neighbours(tmp_path, corpus):
    fields = {"steps": 120, "batch_size": 16, "learning_rate": 1e-2, "evaluate_every": 0}
    (last,) = (event for event in train(begun(tmp_path / "run", corpus, **fields)) if isinstance(event, Evaluation))
    assert last.loss < 0.3
    assert last.accuracy > 0.9
    assert last.bits_per_byte is None


def test_the_loss_is_that_of_the_masked_tokens_alone(tmp_path, corpus):
    """Against a softmax in float64."""
    run = begun(tmp_path / "run", corpus, model={"output_transform": True, "bias": True, "dropout": 0.0})
    batch, model = run.data.batch(0), run.model
    nats = float(summed_loss(model, batch, run.hardware).detach())
    chosen = torch.from_numpy(batch.targets != IGNORE_INDEX)
    logits = model.double()(torch.from_numpy(batch.inputs))
    expected = -logits.log_softmax(-1)[chosen].gather(1, torch.from_numpy(batch.targets)[chosen][:, None]).sum()
    assert nats == approx(float(expected.detach()), model=model)


def test_an_ensemble_is_right_where_its_mean_is(tmp_path, corpus):
    run = begun(tmp_path / "run", corpus, model={"members": 2, "dropout": 0.0, "init_std": 0.3})
    batch, model = run.data.batch(0), run.model.eval().requires_grad_(False)
    nats, correct = summed_loss_and_correct(model, batch, run.hardware)
    chosen, model = batch.targets != IGNORE_INDEX, model.double()
    mean = sum(member(torch.from_numpy(batch.inputs)).softmax(-1) for member in model.members)[chosen] / 2
    targets = torch.from_numpy(batch.targets[chosen])
    assert int(correct) == int((mean.argmax(-1) == targets).sum())
    assert float(nats) == approx(-mean.gather(1, targets[:, None]).log().sum().item(), model=model)


@pytest.mark.parametrize("fields", [{}, {"r_drop": 1.0, "label_smoothing": 0.1, "ema": 0.9}])
def test_a_classifier_resumes_byte_for_byte(tmp_path, examples, fields):
    whole = begun(tmp_path / "whole", examples, steps=8, **fields)
    list(train(whole))
    list(train(begun(tmp_path / "part", examples, steps=8, **fields), stop=stop_after(6)))
    part = resume_run(tmp_path / "part")
    list(train(part))
    assert sums(part) == sums(whole) | {
        "config.json": sums(part)["config.json"],
        "state.json": sums(part)["state.json"],
    }
    assert metrics_lines(part) == metrics_lines(whole)
    assert load_model(part.folder, select_hardware(HardwareConfig())).config.model.labels == ("x", "y", "z")


def test_a_classifier_starts_from_the_layers_of_a_masked_model(tmp_path, corpus, examples):
    list(train(begun(tmp_path / "masked", corpus, model={"output_transform": True})))
    theirs = load_weights(tmp_path / "masked")
    run = begun(tmp_path / "tuned", examples, model={"output_transform": True}, from_run=tmp_path / "masked", ema=0.9)
    ours = run.model.state_dict()
    for name in theirs.keys() - run.model.select_output_weights(theirs).keys():
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=0)
    assert {name for name in ours if name not in theirs} == {
        f"classifier.{layer}.{kind}" for layer in ("pooler", "labels") for kind in ("weight", "bias")
    }
