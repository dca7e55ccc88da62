"""Batches of pairs: a pure function of how far training has come, within their limits, and each pair once an epoch."""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lm.checkpoint import LoadedModel
from lm.config.data import IGNORE_INDEX, DataConfig, ParallelTextConfig
from lm.config.evaluation import PerplexityConfig
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.config.tokenizer import TokenizerConfig
from lm.corpus import survey
from lm.corpus.prepare import prepare_corpus
from lm.corpus.ragged import RaggedArray
from lm.corpus.store import read_held_out
from lm.corpus.survey import load_or_train_pair_tokenizers
from lm.data import pairs as module
from lm.data.batch import Batch
from lm.data.pairs import PairLayout, Pairs
from lm.decoding.translation import Translator
from lm.decoding.translation_input import TranslationModel
from lm.errors import InputError, UsageError
from lm.evaluation.scoring import ScoredTexts, Scorer
from lm.model.transformer import build_model
from lm.pseudorandom import hash64
from lm.text.dependency_trees import compute_tree_positions
from lm.text.parallel_text import find_parallel_texts
from lm.text.records import Record
from tests.lm.corpus.parallel_text import lines, write
from tests.lm.corpus.small_pairs import parsed_corpus
from tests.lm.data.conftest import BOTH, COUNT, HELD

TOKENS = 400
PLAIN, DROPPING = ParallelTextConfig(), ParallelTextConfig(bpe_dropout=0.2)
ALL = [PLAIN, DROPPING, BOTH, ParallelTextConfig(bidirectional=True, bpe_dropout=0.2)]
SEQUENCES = PairLayout(decoder_only=True)
N = IGNORE_INDEX


@pytest.fixture(autouse=True)
def small_pools(monkeypatch):
    monkeypatch.setattr(module, "_POOL_SIZE", 256)


def data(stored, config: ParallelTextConfig, *, seed: int = 3, **options) -> Pairs:
    return Pairs(stored.folder, config, seed=seed, **{"batch_tokens": TOKENS, **options})


def read_by_scorer(tokenizer, pairs: list[Record], language=None, **fields) -> list:
    """The IDs of targets and sources that a model reads when it scores pairs."""
    shape = {"d_model": 16, "n_layers": 1, "n_encoder_layers": 1, "n_heads": 2}
    config, read = ModelConfig(vocab_size=tokenizer.vocab_size, **shape, **fields), []
    run = RunConfig(model=config, parallel=ParallelTextConfig(bidirectional=language is not None))
    loaded = LoadedModel(build_model(config), tokenizer, run, Path("run"), tokenizer)

    def keep(batches):
        for batch in batches:
            read.extend((window.tokens.tolist(), window.source.tolist()) for window in batch)
            yield [np.zeros(len(window.tokens)) for window in batch]

    heads = "heads" if pairs[0].dependency_heads else None
    file = SimpleNamespace(name="pairs", heads=heads, languages=(None, None), records=lambda: pairs)
    assert list(Scorer(loaded, PerplexityConfig()).score(ScoredTexts([file], "pairs", language=language), keep))
    return sorted(read)


def epoch(given: Pairs, number: int = 0) -> Iterator[Batch]:
    consumed, end = number * given.samples, (number + 1) * given.samples
    while consumed < end:
        batch = given.batch(consumed)
        yield batch
        consumed += batch.rows
    assert consumed == end


def rows(batch: Batch) -> Iterator[tuple[list[int], list[int]]]:
    """The IDs of each source and each target."""
    for source, length, target in zip(batch.source, batch.source_lengths, batch.targets, strict=True):
        yield source[:length].tolist(), target[target != N].tolist()


def texts(stored, batches: Iterator[Batch]) -> list[tuple[str, str]]:
    decode = stored.tokenizer.decode
    return [(decode(source), decode(target)) for batch in batches for source, target in rows(batch)]


def equal(one: Batch, other: Batch) -> bool:
    fields = ("inputs", "targets", "source", "source_lengths")
    return all(np.array_equal(getattr(one, field), getattr(other, field)) for field in fields)


def equal_epochs(one: Pairs, other: Pairs, number: int = 0) -> bool:
    return all(equal(*both) for both in zip(epoch(one, number), epoch(other, number), strict=False))


@pytest.mark.parametrize("config", ALL)
def test_each_pair_comes_once_an_epoch_within_the_limits_and_framed(stored, config):
    sources, targets = lines(COUNT)
    expected = list(zip(sources + sources[:20], targets + targets[:20], strict=True))
    if config.bidirectional:
        expected += [(target, source) for source, target in expected]
    given, special, end = data(stored, config), stored.tokenizer.special_tokens, stored.tokenizer.end_of_text
    assert given.samples == len(expected)
    for number in range(2):
        batches = list(epoch(given, number))
        assert Counter(texts(stored, iter(batches))) == Counter(expected)
        assert given.steps_per_epoch == pytest.approx(len(batches), rel=0.1)
        for batch in batches:
            assert max(batch.source.size, batch.targets.size) <= TOKENS
            assert (batch.inputs[:, 0] == stored.tokenizer.start_of_text).all()
            for (source, target), read in zip(rows(batch), batch.inputs, strict=True):
                assert source[-1] == target[-1] == end
                assert read[1 : len(target)].tolist() == target[:-1]
                tag = special["<2de>" if "ß" in stored.tokenizer.decode(target) else "<2en>"]
                assert (source[0] == tag) == config.bidirectional
    assert (given.tokens == sum(batch.n_targets for batch in batches)) == (not config.bpe_dropout)
    assert max(batch.rows for batch in epoch(data(stored, config, rows=5))) == 5
    assert {batch.rows for batch in epoch(data(stored, config, batch_tokens=1))} == {1}


@pytest.mark.parametrize("config", ALL)
def test_a_resumed_run_sees_the_same_batches(stored, config):
    given = data(stored, config)
    batches = [*epoch(given), *epoch(given, 1)]
    places = [0, *itertools.accumulate(batch.rows for batch in batches)]
    for number in np.random.default_rng(0).permutation(len(batches))[:6].tolist():
        assert equal(data(stored, config).batch(places[number]), batches[number])
        assert equal(given.batch(places[number]), batches[number])


@pytest.mark.parametrize("fraction", [0.01, 0.3, 1.0])
def test_fractions_of_a_batch_make_up_the_batch(stored, fraction):
    given = data(stored, DROPPING)
    whole, parts, consumed = given.batch(0), [], 0
    while consumed < whole.rows:
        part = given.batch(consumed, fraction=fraction)
        assert part.rows == min(math.ceil(fraction * whole.rows), whole.rows - consumed)
        parts, consumed = [*parts, *rows(part)], consumed + part.rows
    assert parts == list(rows(whole))


def test_little_is_padding(stored, monkeypatch):
    monkeypatch.setattr(module, "_POOL_SIZE", 1 << 14)
    batches = list(epoch(data(stored, BOTH)))
    real = sum(int(batch.source_lengths.sum()) + batch.n_targets for batch in batches)
    assert real / sum(batch.source.size + batch.targets.size for batch in batches) > 0.85


def test_epochs_and_seeds_have_orders_of_their_own(stored):
    given = data(stored, PLAIN)
    orders = [texts(stored, epoch(given, number)) for number in range(2)]
    orders.append(texts(stored, epoch(data(stored, PLAIN, seed=4))))
    batches = [{frozenset(texts(stored, iter([batch]))) for batch in epoch(given, number)} for number in range(2)]
    for one, other in itertools.combinations(orders, 2):
        assert sum(first == second for first, second in zip(one, other, strict=True)) < 20
    assert len(batches[0] & batches[1]) < len(batches[0]) / 10


def test_dropout_differs_by_epoch_and_ends(stored):
    decode, plain, dropping = stored.tokenizer.decode, data(stored, PLAIN), data(stored, DROPPING)
    seen: dict[str, set[tuple[int, ...]]] = {}
    for number in range(4):
        for source, _ in itertools.chain.from_iterable(map(rows, epoch(dropping, number))):
            seen.setdefault(decode(source), set()).add(tuple(source))
    assert np.mean([len(found) for found in seen.values()]) > 3.5
    ending, fresh = (data(stored, dataclasses.replace(DROPPING, bpe_dropout_until=0.5)) for _ in range(2))
    assert equal_epochs(ending, dropping, 3)  # until the end of the run is known
    ending.set_total_steps(round(4 * dropping.steps_per_epoch))
    assert equal_epochs(ending, dropping, 1)
    for given in (ending, fresh):  # the end has moved
        given.set_total_steps(round(2 * dropping.steps_per_epoch))
        assert equal_epochs(given, dropping)
        assert equal_epochs(given, plain, 1)


@pytest.mark.parametrize("layout", [PairLayout(), SEQUENCES])
def test_no_row_is_longer_than_the_context(stored, layout):
    """What BPE dropout makes too long is read as it is without."""

    def longest(given: Pairs) -> int:
        batches = [*epoch(given), *given.validation()]
        return max(ids.shape[1] for batch in batches for ids in (batch.inputs, batch.source) if ids is not None)

    dropping, options = ParallelTextConfig(bpe_dropout=0.6), {"rows": 4, "batch_tokens": None, "layout": layout}
    context = longest(data(stored, PLAIN, **options))
    assert longest(data(stored, dropping, **options)) > context
    assert longest(data(stored, dropping, context=context, **options)) <= context
    with pytest.raises(InputError, match="more than the context of 9"):
        data(stored, PLAIN, context=9, **options)


def test_separate_vocabularies_and_what_a_tokenizer_lacks(tmp_path, monkeypatch):
    monkeypatch.setenv("LM_CACHE", str(tmp_path))
    config, sides = ParallelTextConfig(separate_vocabularies=True, bpe_dropout=0.3), lines(100)
    source, target = write(tmp_path, *sides)
    files = find_parallel_texts(config, source=[source], target=[target])
    corpus = survey.scan_parallel_corpus(files, DataConfig(validation="0"), config)
    for kind in ("bpe", "byte"):
        own = load_or_train_pair_tokenizers(corpus, TokenizerConfig(kind=kind, vocab_size=300), config)
        folder = prepare_corpus(corpus, own[0], parallel=config, source_tokenizer=own[1]).folder
        if kind == "byte":
            with pytest.raises(UsageError, match="BPE dropout leaves out merges, and the source tokenizer has none"):
                Pairs(folder, config, rows=4, seed=0)
            with pytest.raises(UsageError, match="no special token <2de>"):
                Pairs(folder, BOTH, rows=4, seed=0)
            continue
        found = Pairs(folder, config, rows=4, seed=0)
        assert list(found.validation()) == []
        decode = own[1].decode, own[0].decode
        read = [(decode[0](ids), decode[1](others)) for batch in epoch(found) for ids, others in rows(batch)]
        assert sorted(read) == sorted(zip(*sides, strict=True))


@pytest.mark.parametrize("config", ALL)
def test_validation_has_each_target_once(stored, config):
    given = data(stored, config)
    found = texts(stored, given.validation())
    expected = given.references()
    assert Counter(found) == Counter((text.source, text.target) for text in expected)
    assert given.validation_bytes == sum(len(text.target.encode()) for text in expected)
    assert len(expected) == HELD * (1 + config.bidirectional)
    assert given.references(7) == expected[:7]
    single = data(stored, config, layout=PairLayout(decoder_only=True))
    assert sum(batch.n_targets for batch in single.validation()) == sum(map(len, (ids for _, ids in all_rows(given))))


def all_rows(given: Pairs) -> list[tuple[list[int], list[int]]]:
    return [row for batch in given.validation() for row in rows(batch)]


@pytest.mark.parametrize("way", [0, 1], ids=["forth", "back"])
def test_training_scoring_and_translation_read_the_same_ids(stored, way):
    """Sources are cut where the positions of a model end, but for their frame."""
    given = data(stored, BOTH)
    direction = given.directions[way]
    sides = dict(zip(("source", "target"), lines(HELD, seed=1), strict=True))
    pairs = [Record.of_pair(*both) for both in zip(sides[direction.source], sides[direction.target], strict=True)]
    framed = given.framed("validation", direction, np.arange(HELD))
    expected = [(framed[1].row(row).tolist(), framed[0].row(row).tolist()) for row in range(HELD)]
    assert read_by_scorer(stored.tokenizer, pairs, direction.tag.language) == sorted(expected)
    for limit in (None, 9):
        positions = {} if limit is None else {"positions": "learned", "context_length": limit}
        size = stored.tokenizer.vocab_size
        config = ModelConfig(vocab_size=size, d_model=16, n_layers=1, n_encoder_layers=1, n_heads=2, **positions)
        model = TranslationModel(build_model(config), stored.tokenizer, stored.tokenizer)
        read = Translator([model], to=direction.tag.language)._encode_lines(
            [(number, pair.source, "", None) for number, pair in enumerate(pairs)]
        )
        for number, line in enumerate(read):
            whole = framed[0].row(number).tolist()
            assert line.left_out == max(0, len(whole) - (limit or len(whole)))
            assert line.sources == ([*whole[: len(whole) - 1 - line.left_out], whole[-1]],)


@pytest.mark.parametrize("kind", ["bpe", "byte"])
def test_trees_are_the_same_everywhere_however_words_are_segmented(tmp_path, monkeypatch, kind):
    """The tokens of a place spell its word, in the order of the sentence."""
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    corpus = parsed_corpus(tmp_path, 300)
    tokenizer, _ = load_or_train_pair_tokenizers(corpus, TokenizerConfig(kind=kind, vocab_size=400), PLAIN)
    folder = prepare_corpus(corpus, tokenizer, parallel=PLAIN).folder
    pairs = [item.record for item in corpus.records(tokenizer) if item.split == "validation"]
    given, numbers = Pairs(folder, PLAIN, rows=4, seed=0), np.arange(len(pairs))
    sources, _ = given.framed("validation", given.directions[0], numbers)
    read = read_by_scorer(tokenizer, pairs, syntax="both")
    assert sorted(source for _, source in read) == sorted(sources.row(number).tolist() for number in numbers)
    assert [tuple(row["heads"]) for row in read_held_out(folder)] == [pair.dependency_heads for pair in pairs]
    assert all(batch.source.shape[2] == 4 for batch in given.validation())
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, d_model=16, n_layers=1, n_encoder_layers=1, n_heads=2, syntax="both"
    )
    translator = Translator([TranslationModel(build_model(config), tokenizer, tokenizer)])
    sides = [(number, pair.source, "", pair.dependency_heads) for number, pair in enumerate(pairs)]
    read = translator._encode_lines(sides)
    assert [line.sources[0] for line in read] == [sources.row(number).tolist() for number in numbers]
    found = [sources]
    if kind == "bpe":
        dropping = Pairs(folder, ParallelTextConfig(bpe_dropout=0.5), rows=4, seed=0)
        keys = hash64(numbers.astype(np.uint64))
        found.append(dropping.framed("validation", given.directions[0], numbers, keys)[0])
        assert len(found[1].values) > len(sources.values)
    for number, pair in enumerate(pairs):
        for row in (each.row(number) for each in found):
            for word, place in zip(pair.source.split(), compute_tree_positions(pair.dependency_heads), strict=True):
                assert tokenizer.decode(row[(row[:, 1:] == place).all(axis=1), 0]).strip() == word
            assert row[-1].tolist() == [tokenizer.end_of_text, -1, -1, -1]


SOURCES = RaggedArray.from_rows([[1, 2, 9], [9], [6, 7, 9]])
TARGETS = RaggedArray.from_rows([[3, 9], [4, 5, 9], [5, 9]])


def test_layouts_computed_by_hand():
    batch = PairLayout().batch(SOURCES, TARGETS, start=8)
    assert batch.inputs.tolist() == [[8, 3, 9], [8, 4, 5], [8, 5, 9]]
    assert batch.targets.tolist() == [[3, 9, N], [4, 5, 9], [5, 9, N]]
    assert (batch.source.tolist(), batch.source_lengths.tolist()) == ([[1, 2, 9], [9, 0, 0], [6, 7, 9]], [3, 1, 3])
    batch = PairLayout(decoder_only=True).batch(SOURCES, TARGETS, start=8)
    assert batch.inputs.tolist() == [[1, 2, 9, 8, 3], [9, 8, 4, 5, 0], [6, 7, 9, 8, 5]]
    assert batch.targets.tolist() == [[N, N, N, 3, 9], [N, 4, 5, 9, N], [N, N, N, 5, 9]]
    assert batch.lengths.tolist() == SEQUENCES.lengths(SOURCES.lengths(), TARGETS.lengths()).tolist() == [5, 4, 5]
    empty = RaggedArray.from_rows([])
    assert SEQUENCES.batch(empty, empty, start=8).rows == PairLayout().batch(empty, empty, start=8).rows == 0


@pytest.mark.parametrize("config", ALL)
def test_an_epoch_has_the_same_pairs_in_either_layout(stored, config):
    """Nothing but the layout differs, BPE dropout included, and no batch has more positions than it may."""
    sides = [row for batch in epoch(data(stored, config)) for row in rows(batch)]
    sequences = []
    for batch in epoch(data(stored, config, layout=SEQUENCES)):
        assert batch.inputs.size <= 2 * TOKENS or batch.rows == 1
        for inputs, targets in zip(batch.inputs.tolist(), batch.targets, strict=True):
            first, target = int((targets != N).argmax()), targets[targets != N].tolist()
            assert inputs[first : first + len(target)] == [stored.tokenizer.start_of_text, *target[:-1]]
            sequences.append((inputs[:first], target))
    assert sorted(sequences) == sorted(sides)
