"""Texts with labels: rows that are read whole, each with one target, the number of its label."""

import json
from pathlib import Path

import pytest

from lm.config.model import ModelConfig
from lm.config.run_config import DataConfig, RunConfig, TrainingConfig
from lm.corpus import prepare as preparing
from lm.data import TrainingData
from lm.data.windows import find_label_completions, load_labels
from lm.errors import UsageError
from lm.tokenizer import Tokenizer
from lm.training.training_corpus import open_data
from tests.lm.corpus import small_examples
from tests.lm.corpus.preparing import prepare
from tests.lm.tokenizers_elsewhere import bert_like

TEXTS = [(f"text number {place} é", ("joy", "anger", "true")[place % 3]) for place in range(30)]
DECODER = RunConfig(ModelConfig(vocab_size=257, context_length=40), data_kind="examples")


def prepared(folder: Path, lines: str, tokenizer: Tokenizer | None = None, *, validation: str = "0.2") -> Path:
    source, config = small_examples.source(folder, lines), DataConfig(validation=validation, label_column="label")
    return prepare([source], tokenizer or small_examples.tokenizer(), config, folder / "tokens").folder


def opened(folder: Path) -> TrainingData:
    labels = load_labels(folder)
    model = ModelConfig(vocab_size=257, context_length=40, objective="masked", labels=labels)
    return open_data(folder, RunConfig(model, data_kind="examples", training=TrainingConfig(batch_size=2)))


def rows(batch) -> list[tuple[list[int], int]]:
    texts = [row[:length].tolist() for row, length in zip(batch.inputs, batch.input_lengths, strict=True)]
    return list(zip(texts, batch.targets[:, 0].tolist(), strict=True))


@pytest.mark.parametrize("form", [("text", "label"), ("prompt", "completion")])
def test_every_text_comes_once_an_epoch_with_the_number_of_its_label(tmp_path, form, monkeypatch):
    monkeypatch.setattr(preparing, "CHUNK_BYTES", 300)
    folder = prepared(tmp_path, small_examples.lines(TEXTS, *form))
    data, tokenizer = opened(folder), small_examples.tokenizer()
    labels, end = load_labels(folder), tokenizer.end_of_text
    assert labels == ("anger", "joy", "true")
    trained = [row for first in range(0, data.samples, 2) for row in rows(data.batch(first))][: data.samples]
    held_out = [row for batch in data.validation() for row in rows(batch)]
    expected = [([end, *tokenizer.encode(text), end], labels.index(label)) for text, label in TEXTS]
    assert sorted(trained + held_out) == sorted(expected)
    assert held_out
    assert data.tokens == sum(len(ids) for ids, _ in trained)


def test_labels_are_the_text_that_was_given_whatever_the_tokenizer_makes_of_it(tmp_path):
    """An uncased WordPiece has the same tokens for several of these, or none."""
    labels = ["US", "us", "🦉", "🦊", "naïve", "naive", " joy", "joy", 1, True]
    lines = "".join(json.dumps({"text": "a", "label": label}) + "\n" for label in labels)
    folder = prepared(tmp_path, lines, Tokenizer(bert_like()), validation="0")
    assert load_labels(folder) == tuple(sorted([*labels[:-2], "1", "true"]))


def test_completions_that_are_too_many_to_be_labels_are_not_stored_as_such(tmp_path, monkeypatch):
    monkeypatch.setattr(preparing, "_MAX_COMPLETIONS", 8)
    folder = prepared(tmp_path, small_examples.lines([(f"{n} + 1 = ", str(n + 1)) for n in range(30)]))
    with pytest.raises(UsageError, match="too many different completions"):
        load_labels(folder)
    assert open_data(folder, DECODER).samples


@pytest.mark.parametrize(
    ("form", "expected"),
    [(("text", "label"), ("\nanger", "\njoy", "\ntrue")), (("prompt", "completion"), ("anger", "joy", "true"))],
)
def test_few_short_completions_that_are_seen_often_are_labels_with_their_delimiter(tmp_path, form, expected):
    assert find_label_completions(prepared(tmp_path, small_examples.lines(TEXTS, *form))) == expected


@pytest.mark.parametrize(
    ("completions", "why"),
    [
        ([str(n) for n in range(30)], "each is seen once"),
        (["a", "b", "c"] * 4, "fewer than five examples each"),
        (["x", "x" * 101] * 15, "one is long"),
        ([str(n % 201) for n in range(1206)], "there are many"),
        (["joy", "\njoy", "fear"] * 10, "a label is written in two ways"),
        (["US", "us"] * 20, "they have the same tokens"),
    ],
)
def test_other_completions_are_no_labels(tmp_path, completions, why):
    lines = small_examples.lines([(str(n), completion) for n, completion in enumerate(completions)])
    tokenizer = Tokenizer(bert_like()) if why == "they have the same tokens" else None
    assert find_label_completions(prepared(tmp_path, lines, tokenizer)) == ()
