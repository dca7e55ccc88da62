"""Pairs are framed for training as they are for scoring and for translation."""

import numpy as np
import pytest

from lm.config.model import ModelConfig
from lm.config.tokenizer import TokenizerConfig
from lm.corpus.prepare import prepare_corpus
from lm.corpus.store import read_held_out
from lm.corpus.survey import load_or_train_pair_tokenizers
from lm.data.batch import Batch
from lm.data.pair_batches import DecoderOnlyLayout, EncoderDecoderLayout
from lm.data.pair_data import PairData
from lm.data.pair_tokens import FramedPairs, StoredPairs, TranslationDirection, translation_directions
from lm.decoding.translation import Translator
from lm.decoding.translation_input import SourceLine, TranslationModel
from lm.evaluation.pair_scoring import EncodedPairs, PairEncoder
from lm.model.transformer import build_model
from lm.pseudorandom import hash64
from lm.text.dependency_trees import compute_tree_positions
from lm.text.records import Record
from tests.lm.corpus.parallel_text import lines
from tests.lm.corpus.small_pairs import PLAIN, parsed_corpus
from tests.lm.data.conftest import BOTH

HELD = 60


def texts(direction: TranslationDirection) -> list[Record]:
    """The validation split, as its files have it."""
    sides = dict(zip(("source", "target"), lines(HELD, seed=1), strict=True))
    both = zip(sides[direction.source], sides[direction.target], strict=True)
    return [Record.of_pair(source, target, line=number) for number, (source, target) in enumerate(both, 1)]


@pytest.fixture(params=[0, 1], ids=["forth", "back"])
def direction(stored, request) -> TranslationDirection:
    return translation_directions(stored, bidirectional=True)[request.param]


def scored(stored: StoredPairs, direction: TranslationDirection) -> EncodedPairs:
    return PairEncoder(stored.tokenizer, stored.source_tokenizer, tag=direction.tag).encode(texts(direction))


def test_training_and_scoring_give_a_model_the_same_ids(stored, direction):
    sources, targets = FramedPairs(stored).rows("validation", direction, np.arange(HELD))
    evaluated = scored(stored, direction)
    for trained_on, read in ((sources, evaluated.sources), (targets, evaluated.targets)):
        assert trained_on.ends.tolist() == read.ends.tolist()
        assert trained_on.values.tolist() == read.values.tolist()
    assert FramedPairs(stored).special_tokens(direction).start == evaluated.start


def test_training_and_scoring_give_a_model_the_same_batches(stored):
    """Of the validation split, the first direction first."""
    batches = PairData(stored, BOTH, rows=4, seed=0).validation()
    for direction in translation_directions(stored, bidirectional=True):
        pairs, seen = scored(stored, direction), 0
        numbers = {tuple(pairs.sources.row(number).tolist()): number for number in range(HELD)}
        while seen < HELD:
            batch = next(batches)
            assert batch.source is not None
            assert batch.source_lengths is not None
            rows = zip(batch.source, batch.source_lengths, strict=True)
            same = [numbers[tuple(row[:length].tolist())] for row, length in rows]
            assert_equal(batch, pairs.batch(np.array(same), EncoderDecoderLayout()))
            seen += batch.rows
    assert next(batches, None) is None


def assert_equal(one: Batch, other: Batch) -> None:
    for field in ("inputs", "targets", "source", "source_lengths"):
        np.testing.assert_array_equal(getattr(one, field), getattr(other, field))


@pytest.mark.parametrize("layout", [EncoderDecoderLayout(), DecoderOnlyLayout()], ids=["encoder-decoder", "one stack"])
def test_rows_that_just_fit_the_context_keep_their_dropout(stored, direction, layout):
    numbers, keys = np.arange(HELD), hash64(np.arange(HELD, dtype=np.uint64))

    def framed(context: int | None):
        pairs = FramedPairs(stored, dropout=0.6, context=context, layout=layout)
        return pairs.rows("validation", direction, numbers, keys)

    free = framed(None)
    longest = int(layout.lengths(*free).max())
    for context, is_same in ((longest, True), (longest - 1, False)):
        pairs = [side.values.tolist() for side in framed(context)]
        assert (pairs == [side.values.tolist() for side in free]) is is_same


@pytest.mark.parametrize("limit", [None, 9])
def test_a_translator_reads_the_sources_that_training_does(stored, direction, limit):
    """Cut where the positions of the model end, but for their frame."""
    assert direction.tag is not None
    positions = {"positions": "rotary"} if limit is None else {"positions": "learned", "context_length": limit}
    config = ModelConfig(
        vocab_size=stored.tokenizer.vocab_size, d_model=16, n_layers=1, n_encoder_layers=1, n_heads=2, **positions
    )
    model = TranslationModel(build_model(config), stored.tokenizer, stored.tokenizer)
    read: list[SourceLine] = Translator([model], to=direction.tag.language)._encode_lines(
        [(number, pair.source, "", None) for number, pair in enumerate(texts(direction))]
    )
    sources, _ = FramedPairs(stored).rows("validation", direction, np.arange(HELD))
    for number, line in enumerate(read):
        whole = sources.row(number).tolist()
        assert line.left_out == max(0, len(whole) - (limit or len(whole)))
        assert line.sources == ([*whole[: len(whole) - 1 - line.left_out], whole[-1]],)


def test_with_keys_a_sentence_is_segmented_again_and_spells_the_same(stored, direction):
    framed, numbers = FramedPairs(stored, dropout=0.5), np.arange(HELD)
    plain, dropped = framed.rows("validation", direction, numbers), framed.rows(
        "validation", direction, numbers, np.arange(HELD, dtype=np.uint64)
    )  # fmt: skip
    for before, after in zip(plain, dropped, strict=True):
        assert after.lengths().sum() > before.lengths().sum()
        spelled = [[stored.tokenizer.decode(rows.row(number)) for number in numbers] for rows in (before, after)]
        assert spelled[0] == spelled[1]


def test_a_single_direction_has_no_tag(stored):
    assert translation_directions(stored, bidirectional=False) == [TranslationDirection("source", "target", None)]
    forth, back = translation_directions(stored, bidirectional=True)
    assert (forth.source, forth.target, back.source, back.target) == ("source", "target", "target", "source")
    assert [each.tag.language for each in (forth, back) if each.tag] == ["de", "en"]


@pytest.fixture(params=["bpe", "byte"])
def parsed(request, tmp_path, monkeypatch) -> tuple[list[Record], StoredPairs]:
    """The validation split of sentences with trees, and the folder that they were prepared into."""
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    corpus = parsed_corpus(tmp_path, 300)
    tokenizer, _ = load_or_train_pair_tokenizers(corpus, TokenizerConfig(kind=request.param, vocab_size=400), PLAIN)
    stored = StoredPairs.open(prepare_corpus(corpus, tokenizer, parallel=PLAIN).folder)
    pairs = [item.record for item in corpus.records(tokenizer) if item.split == "validation"]
    return pairs, stored  # type: ignore[return-value]


FORTH = TranslationDirection("source", "target")


def test_trees_are_the_same_for_training_scoring_and_translation(parsed):
    pairs, stored = parsed
    sources, targets = FramedPairs(stored).rows("validation", FORTH, np.arange(len(pairs)))
    scored = PairEncoder(stored.tokenizer).encode(pairs)
    assert sources.values.tolist() == scored.sources.values.tolist()
    assert targets.values.tolist() == scored.targets.values.tolist()
    config = ModelConfig(
        vocab_size=stored.tokenizer.vocab_size, d_model=16, n_layers=1, n_encoder_layers=1, n_heads=2, syntax="both"
    )
    translator = Translator([TranslationModel(build_model(config), stored.tokenizer, stored.tokenizer)])
    read = translator._encode_lines(
        [(number, pair.source, "", pair.dependency_heads) for number, pair in enumerate(pairs)]
    )
    assert [line.sources[0] for line in read] == [sources.row(number).tolist() for number in range(len(pairs))]
    assert [tuple(row["heads"]) for row in read_held_out(stored.folder)] == [pair.dependency_heads for pair in pairs]
    batches = PairData(stored, PLAIN, rows=4, seed=0).validation()
    assert all(batch.source is not None and batch.source.shape[2] == 4 for batch in batches)


def test_words_keep_their_places_however_they_are_segmented(parsed):
    """With BPE dropout too: the tokens of a place spell its word, in the order of the sentence."""
    pairs, stored = parsed
    if stored.tokenizer.kind != "bpe":
        pytest.skip("it has no merges to leave out")
    numbers = np.arange(len(pairs))
    plain, _ = FramedPairs(stored).rows("validation", FORTH, numbers)
    dropped, _ = FramedPairs(stored, dropout=0.5).rows("validation", FORTH, numbers, hash64(numbers.astype(np.uint64)))
    assert len(dropped.values) > len(plain.values)
    for number, pair in enumerate(pairs):
        assert pair.dependency_heads is not None
        for sources in (plain, dropped):
            row = sources.row(number)
            for word, place in zip(pair.source.split(), compute_tree_positions(pair.dependency_heads), strict=True):
                spelled = row[(row[:, 1:] == place).all(axis=1), 0]
                assert stored.tokenizer.decode(spelled).strip() == word
            assert row[-1].tolist() == [stored.tokenizer.end_of_text, -1, -1, -1]


def test_a_sentence_that_no_longer_fits_is_left_as_it_is_with_its_places(parsed):
    pairs, stored = parsed
    if stored.tokenizer.kind != "bpe":
        pytest.skip("it has no merges to leave out")
    numbers = np.arange(len(pairs))
    keys = hash64(numbers.astype(np.uint64))
    plain, _ = FramedPairs(stored).rows("validation", FORTH, numbers)
    free, _ = FramedPairs(stored, dropout=0.5).rows("validation", FORTH, numbers, keys)
    context = int(max(length for length in free.lengths() if length <= 40))  # which one sentence fills
    held, _ = FramedPairs(stored, dropout=0.5, context=context).rows("validation", FORTH, numbers, keys)
    fits = free.lengths() <= context
    assert 0 < fits.sum() < len(pairs)
    for number in numbers:
        assert held.row(number).tolist() == (free if fits[number] else plain).row(number).tolist()
