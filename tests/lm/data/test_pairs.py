"""Batches of pairs: a pure function of how far training has come, within their limits, and each pair once an epoch."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from lm.config.run_config import IGNORE_INDEX, ParallelTextConfig, TokenizerConfig
from lm.corpus import RaggedArray, hash64
from lm.corpus.prepare import prepare_corpus
from lm.corpus.survey import train_tokenizers
from lm.data import Batch
from lm.data import pairs as module
from lm.data.pairs import PairLayout, Pairs
from lm.errors import InputError
from lm.text.parallel_text import compute_tree_positions
from tests.lm.corpus.parallel_text import lines
from tests.lm.corpus.small_pairs import parsed_corpus
from tests.lm.data.conftest import BOTH, COUNT, HELD

TOKENS = 400
PLAIN, DROPPING = ParallelTextConfig(), ParallelTextConfig(bpe_dropout=0.2)
ALL = [PLAIN, DROPPING, BOTH, ParallelTextConfig(bidirectional=True, bpe_dropout=0.2)]
SEQUENCES = PairLayout(decoder_only=True)
N = IGNORE_INDEX


@pytest.fixture(autouse=True)
def small_pools(monkeypatch):
    monkeypatch.setattr(module, "_POOL_SIZE", 128)


def data(stored, config: ParallelTextConfig, *, seed: int = 3, **options) -> Pairs:
    return Pairs(stored.folder, config, seed=seed, **{"batch_tokens": TOKENS, **options})


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
    for number in np.random.default_rng(0).permutation(len(batches))[:4].tolist():
        assert equal(data(stored, config).batch(places[number]), batches[number])
        assert equal(given.batch(places[number]), batches[number])


def test_epochs_and_seeds_have_orders_of_their_own_with_little_padding(stored, monkeypatch):
    monkeypatch.setattr(module, "_POOL_SIZE", 1 << 14)
    given, other = data(stored, PLAIN), data(stored, PLAIN, seed=4)
    orders = [list(epoch(given)), list(epoch(given, 1)), list(epoch(other))]
    for one, another in itertools.combinations([texts(stored, iter(batches)) for batches in orders], 2):
        assert sum(first == second for first, second in zip(one, another, strict=True)) < 20
    for batches in orders:
        real = sum(int(batch.source_lengths.sum()) + batch.n_targets for batch in batches)
        assert real / sum(batch.source.size + batch.targets.size for batch in batches) > 0.85


def test_dropout_differs_by_epoch_and_ends(stored):
    decode, plain, dropping = stored.tokenizer.decode, data(stored, PLAIN), data(stored, DROPPING)
    seen: dict[str, set[tuple[int, ...]]] = {}
    for number in range(4):
        for source, _ in itertools.chain.from_iterable(map(rows, epoch(dropping, number))):
            seen.setdefault(decode(source), set()).add(tuple(source))
    assert np.mean([len(found) for found in seen.values()]) > 3.5
    ending = data(stored, dataclasses.replace(DROPPING, bpe_dropout_until=0.5))
    assert equal_epochs(ending, dropping, 3)  # until the end of the run is known
    for epochs in (4, 2):  # the end is moved
        ending.set_total_steps(round(epochs * dropping.steps_per_epoch))
        assert equal_epochs(ending, dropping, epochs // 2 - 1)
        assert equal_epochs(ending, plain, epochs // 2)


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


@pytest.mark.parametrize("config", ALL)
def test_validation_has_each_target_once(stored, config):
    given = data(stored, config)
    expected = given.references()
    assert Counter(texts(stored, given.validation())) == Counter((text.source, text.target) for text in expected)
    assert given.validation_bytes == sum(len(text.target.encode()) for text in expected)
    assert len(expected) == HELD * (1 + config.bidirectional)
    assert given.references(7) == expected[:7]


@pytest.mark.parametrize("kind", ["bpe", "byte"])
def test_trees_stay_however_words_are_segmented(tmp_path, monkeypatch, kind):
    """The tokens of a place spell its word, in the order of the sentence."""
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    corpus = parsed_corpus(tmp_path, 300)
    tokenizer, _ = train_tokenizers(corpus, TokenizerConfig(kind=kind, vocab_size=400), PLAIN)
    folder = prepare_corpus(corpus, tokenizer, parallel=PLAIN).folder
    pairs = [item.record for item in corpus.records(tokenizer) if item.split == "validation"]
    given, numbers = Pairs(folder, PLAIN, rows=4, seed=0), np.arange(len(pairs))
    sources, _ = given.framed("validation", given.directions[0], numbers)
    assert [text.heads for text in given.references()] == [pair.dependency_heads for pair in pairs]
    found = [sources]
    if kind == "bpe":
        dropping = Pairs(folder, ParallelTextConfig(bpe_dropout=0.5), rows=4, seed=0)
        keys = hash64(numbers.astype(np.uint64))
        found.append(dropping.framed("validation", given.directions[0], numbers, keys)[0])
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
