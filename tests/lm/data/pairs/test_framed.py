"""Pairs are framed for training as they are for scoring and for translation."""

from __future__ import annotations

import numpy as np
import pytest

from lm.config.model import ModelConfig
from lm.data.batch import Batch
from lm.data.pairs.batches import PairData
from lm.data.pairs.framed import Direction, FramedPairs, directions
from lm.data.pairs.layout import TwoSides
from lm.data.pairs.store import StoredPairs
from lm.decoding.translation import Translator
from lm.decoding.translation_input import Line, TranslationModel
from lm.evaluation.forced import PairEncoder, TokenPairs
from lm.model.transformer import build_model
from lm.text.parallel import Pair
from tests.lm.data.conftest import BOTH
from tests.lm.data.pairs.parallel_text import lines

HELD = 60


def texts(direction: Direction) -> list[Pair]:
    """The validation split, as its files have it."""
    sides = dict(zip(("source", "target"), lines(HELD, seed=1), strict=True))
    both = zip(sides[direction.source], sides[direction.target], strict=True)
    return [Pair(source, target, number) for number, (source, target) in enumerate(both, 1)]


@pytest.fixture(params=[0, 1], ids=["forth", "back"])
def direction(stored: StoredPairs, request: pytest.FixtureRequest) -> Direction:
    return directions(stored, bidirectional=True)[request.param]


def scored(stored: StoredPairs, direction: Direction) -> TokenPairs:
    return PairEncoder(stored.tokenizer, stored.source_tokenizer, tag=direction.tag).encode(texts(direction))


def test_training_and_scoring_give_a_model_the_same_ids(stored: StoredPairs, direction: Direction) -> None:
    sources, targets = FramedPairs(stored).rows("validation", direction, np.arange(HELD))
    evaluated = scored(stored, direction)
    for trained_on, read in ((sources, evaluated.sources), (targets, evaluated.targets)):
        assert trained_on.ends.tolist() == read.ends.tolist()
        assert trained_on.values.tolist() == read.values.tolist()
    assert FramedPairs(stored).frames(direction).start == evaluated.start


def test_training_and_scoring_give_a_model_the_same_batches(stored: StoredPairs) -> None:
    """Of the validation split, the first direction first."""
    batches = PairData(stored, BOTH, rows=4, seed=0).validation()
    for direction in directions(stored, bidirectional=True):
        pairs, seen = scored(stored, direction), 0
        numbers = {tuple(pairs.sources.row(number).tolist()): number for number in range(HELD)}
        while seen < HELD:
            batch = next(batches)
            assert batch.source is not None
            assert batch.source_lengths is not None
            rows = zip(batch.source, batch.source_lengths, strict=True)
            same = pairs.batch([numbers[tuple(row[:length].tolist())] for row, length in rows], TwoSides())
            assert_equal(batch, same)
            seen += batch.rows
    assert next(batches, None) is None


def assert_equal(one: Batch, other: Batch) -> None:
    for field in ("inputs", "targets", "source", "source_lengths"):
        np.testing.assert_array_equal(getattr(one, field), getattr(other, field))


@pytest.mark.parametrize("limit", [None, 9])
def test_a_translator_reads_the_sources_that_training_does(
    stored: StoredPairs, direction: Direction, limit: int | None
) -> None:
    """Cut where the positions of the model end, but for their frame."""
    assert direction.tag is not None
    positions = {"positions": "rotary"} if limit is None else {"positions": "learned", "context_length": limit}
    config = ModelConfig(
        vocab_size=stored.tokenizer.vocab_size, d_model=16, n_layers=1, n_encoder_layers=1, n_heads=2, **positions
    )
    model = TranslationModel(build_model(config), stored.tokenizer, stored.tokenizer)
    read: list[Line] = Translator([model], to=direction.tag.language)._read(
        [(number, pair.source, "") for number, pair in enumerate(texts(direction))]
    )
    sources, _ = FramedPairs(stored).rows("validation", direction, np.arange(HELD))
    for number, line in enumerate(read):
        whole = sources.row(number).tolist()
        assert line.left_out == max(0, len(whole) - (limit or len(whole)))
        assert line.sources == ([*whole[: len(whole) - 1 - line.left_out], whole[-1]],)


def test_with_keys_a_sentence_is_segmented_anew_and_spells_the_same(stored: StoredPairs, direction: Direction) -> None:
    framed, numbers = FramedPairs(stored, dropout=0.5), np.arange(HELD)
    plain, dropped = framed.rows("validation", direction, numbers), framed.rows(
        "validation", direction, numbers, np.arange(HELD, dtype=np.uint64)
    )  # fmt: skip
    for before, after in zip(plain, dropped, strict=True):
        assert after.lengths().sum() > before.lengths().sum()
        spelled = [[stored.tokenizer.decode(rows.row(number)) for number in numbers] for rows in (before, after)]
        assert spelled[0] == spelled[1]


def test_a_single_direction_has_no_tag(stored: StoredPairs) -> None:
    assert directions(stored, bidirectional=False) == [Direction("source", "target", None)]
    forth, back = directions(stored, bidirectional=True)
    assert (forth.source, forth.target, back.source, back.target) == ("source", "target", "target", "source")
    assert [each.tag.language for each in (forth, back) if each.tag] == ["de", "en"]
