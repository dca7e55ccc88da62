"""A decoder that learns labels is evaluated by the label that it ranks first, as `lm classify` would give it."""

import numpy as np
import pytest

from lm.config.data import DataConfig
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.config.training import TrainingConfig
from lm.corpus.store import read_held_out
from lm.decoding.classifier import Classifier
from lm.training.events import Evaluation
from lm.training.loop import train
from lm.training.run import Run
from lm.training.training_corpus import TrainingCorpus
from tests.lm.corpus import small_examples
from tests.lm.corpus.preparing import prepare
from tests.lm.training.runs import start_run

SHAPE = {"context_length": 16, "d_model": 32, "n_layers": 2, "n_heads": 2}


@pytest.fixture(scope="module")
def examples(tmp_path_factory, byte_tokenizer) -> TrainingCorpus:
    """Texts whose label is the letter that they have most, twice where there are many."""
    place, draw = tmp_path_factory.mktemp("examples"), np.random.default_rng(1)
    pairs = []
    for number in range(200):
        letter = draw.choice(list("xyz"))
        letters = [*draw.choice(list("xyz"), size=2), *[letter] * (5 + number % 3)]
        pairs.append(("".join(draw.permutation(letters)), str(letter) * (1 + (number % 3 == 2))))
    source = small_examples.source(place, small_examples.lines(pairs, "text", "label"))
    config = DataConfig(validation="0.2")
    return TrainingCorpus(prepare([source], byte_tokenizer, config, place / "tokens").folder, byte_tokenizer)


def begun(folder, corpus, **fields) -> Run:
    settings = {"batch_size": 16, "steps": 8, "warmup_steps": 3, "evaluate_every": 4, "learning_rate": 5e-3, **fields}
    config = RunConfig(ModelConfig(**SHAPE), training=TrainingConfig(**settings), data_kind="examples")
    return start_run(folder, config, corpus)


def test_accuracy_is_the_fraction_of_held_out_examples_whose_label_is_ranked_first(tmp_path, examples, byte_tokenizer):
    run = begun(tmp_path / "run", examples, steps=60, evaluate_every=0)
    (found,) = (event for event in train(run) if isinstance(event, Evaluation))
    run.model.eval()
    classifier = Classifier(run.model, byte_tokenizer, run.config.label_completions, batch_size=5)
    rows = list(read_held_out(examples.folder))
    found_labels = [each.label for each in classifier.classify([row["prompt"] for row in rows])]
    right = sum(label == row["completion"].strip() for label, row in zip(found_labels, rows, strict=True))
    assert found.accuracy == right / len(rows)
    assert found.bits_per_byte is not None
    assert found.metrics["validation_accuracy"] == found.accuracy
    assert found.accuracy > 0.4
