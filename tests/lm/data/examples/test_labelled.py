"""Texts with labels: rows that are read whole, each with one target, the number of its label."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lm.config.data import DataConfig
from lm.config.model import ModelConfig
from lm.config.run import RunConfig
from lm.config.training import TrainingConfig
from lm.data.examples.labelled import LabelledData, labels_of
from lm.data.kinds import open_data
from lm.errors import UsageError
from tests.lm.data.examples import small_examples
from tests.lm.data.preparing import prepare

TEXTS = [(f"text number {place} é", ("joy", "anger", "true")[place % 3]) for place in range(30)]


def prepared(folder: Path, pairs, *, form=("text", "label"), validation: str = "0.2", kind: str = "byte") -> Path:
    source = small_examples.source(folder, small_examples.lines(pairs, *form))
    config = DataConfig(validation=validation, supervised=True)
    return prepare([source], small_examples.tokenizer(kind), config, folder / "tokens").folder


def opened(folder: Path, *, context: int = 40, rows: int = 4, labels: tuple[str, ...] | None = None) -> LabelledData:
    model = ModelConfig(vocab_size=257, context_length=context, objective="masked", labels=labels or labels_of(folder))
    config = RunConfig(model, data=DataConfig(supervised=True), training=TrainingConfig(batch_size=rows))
    data = open_data(folder, config)
    assert isinstance(data, LabelledData)
    return data


def rows(batch) -> list[tuple[list[int], int]]:
    texts = [row[:length].tolist() for row, length in zip(batch.inputs, batch.input_lengths, strict=True)]
    return list(zip(texts, batch.targets[:, 0].tolist(), strict=True))


@pytest.mark.parametrize("form", [("text", "label"), ("prompt", "completion")])
def test_every_text_comes_once_an_epoch_with_the_number_of_its_label(tmp_path, form):
    folder = prepared(tmp_path, TEXTS, form=form)
    data, tokenizer = opened(folder), small_examples.tokenizer()
    labels, end = labels_of(folder), tokenizer.end_of_text
    assert labels == ("anger", "joy", "true")
    trained = [row for first in range(0, data.samples, 4) for row in rows(data.batch(first))][: data.samples]
    held_out = [row for batch in data.validation() for row in rows(batch)]
    expected = [([end, *tokenizer.encode(text), end], labels.index(label)) for text, label in TEXTS]
    assert sorted(trained + held_out) == sorted(expected)
    assert held_out


def test_a_batch_counts_the_tokens_that_are_read_and_predicts_a_label_for_each_row(tmp_path):
    batch = opened(prepared(tmp_path, TEXTS)).batch(0)
    assert batch.predicted == batch.rows == 4
    assert batch.tokens == sum(len(ids) for ids, _ in rows(batch))
    halves = list(batch.split(2))
    assert [rows(half) for half in halves] == [rows(batch)[:2], rows(batch)[2:]]


def test_a_longer_text_loses_its_end_but_not_the_token_that_ends_it(tmp_path):
    long = [("x" * 50, "a"), ("y" * 8, "b")]
    data = opened(prepared(tmp_path, long, validation="0"), context=10, rows=2)
    end = small_examples.tokenizer().end_of_text
    found = sorted(rows(data.batch(0)))
    assert found == [([end, *b"x" * 8, end], 0), ([end, *b"y" * 8, end], 1)]
    warning = data.warnings(parameters=1, epochs=1.0, patience=None)[0]
    assert "1 of 2 texts are longer than the context" in warning


def test_labels_as_many_as_texts_are_warned_of(tmp_path):
    data = opened(prepared(tmp_path, [(f"{n} + 1 = ", str(n + 1)) for n in range(8)], validation="0"))
    assert "8 labels for 8 texts" in data.warnings(parameters=1, epochs=1.0, patience=None)[-1]


def test_numbers_and_truth_values_are_labels_as_they_are_written(tmp_path):
    lines = "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in (("a", 1), ("b", True)))
    source = small_examples.source(tmp_path, lines)
    folder = prepare([source], small_examples.tokenizer(), small_examples.WHOLE, tmp_path / "tokens").folder
    assert labels_of(folder) == ("1", "true")


def test_a_single_label_is_refused(tmp_path):
    folder = prepared(tmp_path, [("a", "joy"), ("b", "joy")], validation="0")
    with pytest.raises(UsageError, match="the same label, 'joy'"):
        labels_of(folder)


def test_batches_are_the_same_for_the_same_place(tmp_path):
    folder = prepared(tmp_path, TEXTS)
    np.testing.assert_array_equal(opened(folder).batch(9).inputs, opened(folder).batch(9).inputs)
