"""Texts with labels: rows that are read whole, each with one target, the number of its label."""

import json
from pathlib import Path

import pytest

from lm.config.data import DataConfig
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.config.training import TrainingConfig
from lm.corpus import prepare as preparing
from lm.corpus.store import open_split
from lm.data.batch import TrainingData
from lm.data.rows import find_label_completions, load_labels
from lm.errors import UsageError
from lm.tokenizer.tokenizer import Tokenizer
from lm.training.training_corpus import open_data
from tests.lm.corpus import small_examples
from tests.lm.corpus.preparing import prepare
from tests.lm.tokenizers_elsewhere import bert_like

TEXTS = [(f"text number {place} é", ("joy", "anger", "true")[place % 3]) for place in range(30)]


def prepared(folder: Path, pairs, *, form=("text", "label"), validation: str = "0.2", kind: str = "byte") -> Path:
    source = small_examples.source(folder, small_examples.lines(pairs, *form))
    config = DataConfig(validation=validation, label_column="label")
    return prepare([source], small_examples.tokenizer(kind), config, folder / "tokens").folder


def opened(folder: Path, *, context: int = 40, rows: int = 4, labels: tuple[str, ...] | None = None) -> TrainingData:
    model = ModelConfig(
        vocab_size=257, context_length=context, objective="masked", labels=labels or load_labels(folder)
    )
    config = RunConfig(model, data_kind="examples", training=TrainingConfig(batch_size=rows))
    return open_data(folder, config)


def rows(batch) -> list[tuple[list[int], int]]:
    texts = [row[:length].tolist() for row, length in zip(batch.inputs, batch.input_lengths, strict=True)]
    return list(zip(texts, batch.targets[:, 0].tolist(), strict=True))


@pytest.mark.parametrize("form", [("text", "label"), ("prompt", "completion")])
def test_every_text_comes_once_an_epoch_with_the_number_of_its_label(tmp_path, form):
    folder = prepared(tmp_path, TEXTS, form=form)
    data, tokenizer = opened(folder), small_examples.tokenizer()
    labels, end = load_labels(folder), tokenizer.end_of_text
    assert labels == ("anger", "joy", "true")
    trained = [row for first in range(0, data.samples, 4) for row in rows(data.batch(first))][: data.samples]
    held_out = [row for batch in data.validation() for row in rows(batch)]
    expected = [([end, *tokenizer.encode(text), end], labels.index(label)) for text, label in TEXTS]
    assert sorted(trained + held_out) == sorted(expected)
    assert held_out


def test_a_longer_text_loses_its_end_but_not_the_token_that_ends_it(tmp_path):
    long = [("x" * 50, "a"), ("y" * 8, "b")]
    data = opened(prepared(tmp_path, long, validation="0"), context=10, rows=2)
    end = small_examples.tokenizer().end_of_text
    found = sorted(rows(data.batch(0)))
    assert found == [([end, *b"x" * 8, end], 0), ([end, *b"y" * 8, end], 1)]
    assert data.warnings() == ["of 2 examples, 1 are truncated to the context, and 0 left out"]


def test_numbers_and_truth_values_are_labels_as_they_are_written(tmp_path):
    lines = "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in (("a", 1), ("b", True)))
    source = small_examples.source(tmp_path, lines)
    folder = prepare([source], small_examples.tokenizer(), small_examples.WHOLE, tmp_path / "tokens").folder
    assert load_labels(folder) == ("1", "true")


def test_completions_that_are_too_many_to_be_labels_are_not_stored_as_such(tmp_path, monkeypatch):
    monkeypatch.setattr(preparing, "_MAX_COMPLETIONS", 8)
    folder = prepared(tmp_path, [(f"{n} + 1 = ", str(n + 1)) for n in range(30)], form=("prompt", "completion"))
    with pytest.raises(UsageError, match="too many different completions"):
        load_labels(folder)
    config = RunConfig(ModelConfig(vocab_size=257, context_length=40), data_kind="examples")
    assert open_data(folder, config).samples


def completions(folder: Path, pairs, *, form=("prompt", "completion"), kind: str = "byte") -> tuple[str, ...]:
    return find_label_completions(prepared(folder, pairs, form=form, kind=kind))


@pytest.mark.parametrize(
    ("form", "expected"),
    [(("text", "label"), ("\nanger", "\njoy", "\ntrue")), (("prompt", "completion"), ("anger", "joy", "true"))],
)
def test_few_short_completions_that_are_seen_often_are_labels_with_their_delimiter(tmp_path, form, expected):
    assert completions(tmp_path, TEXTS, form=form) == expected


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        ([(f"{n} + 1 =", str(n + 1)) for n in range(30)], "each is seen once"),
        ([(str(n), ("a", "b", "c")[n % 3]) for n in range(14)], "fewer than five examples each"),
        ([(str(n), "x" * (n % 2 * 100 + 1)) for n in range(30)], "one is long"),
        ([(str(n), str(n % 201)) for n in range(1206)], "there are many"),
        ([(str(n), ("joy", "\njoy", "fear")[n % 3]) for n in range(30)], "a label is written in two ways"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_completions_are_no_labels(tmp_path, pairs, why):
    assert completions(tmp_path, pairs) == ()


def test_labels_with_the_same_tokens_are_none(tmp_path):
    lines = small_examples.lines([(f"text {n}", ("US", "us")[n % 2]) for n in range(40)], "text", "label")
    source, config = small_examples.source(tmp_path, lines), DataConfig(label_column="label")
    assert find_label_completions(prepare([source], Tokenizer(bert_like()), config, tmp_path / "tokens").folder) == ()


def test_held_out_examples_are_asked_with_the_number_of_their_label(tmp_path):
    folder = prepared(tmp_path, TEXTS)
    config = RunConfig(ModelConfig(vocab_size=257, context_length=40), data_kind="examples")
    data, tokenizer, labels = open_data(folder, config), small_examples.tokenizer(), ("true", "joy", "anger")
    asked = [(tokenizer.decode(each.ids), labels[each.label]) for each in data.labelled_prompts(labels, 1000)]
    assert asked
    assert set(asked) <= set(TEXTS)
    assert len(asked) == open_split(folder, "validation").documents
    assert len(data.labelled_prompts(labels, 2)) == 2
