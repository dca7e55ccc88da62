"""Batches of pairs: a pure function of how far training has come, within their limits, and each pair once an epoch."""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lm.config.data import IGNORE_INDEX, DataConfig, ParallelTextConfig
from lm.config.tokenizer import TokenizerConfig
from lm.corpus import survey
from lm.corpus.prepare import prepare_corpus
from lm.corpus.survey import load_or_train_pair_tokenizers
from lm.data import pair_data
from lm.data.batch import Batch
from lm.data.pair_data import PairData
from lm.data.pair_tokens import StoredPairs
from lm.errors import InputError, UsageError
from lm.text.parallel_text import find_parallel_texts
from lm.tokenizer import training as tokenizer_training
from tests.lm.corpus.parallel_text import lines, write
from tests.lm.data.conftest import BOTH, COUNT

TOKENS = 400
PLAIN, DROPPING = ParallelTextConfig(), ParallelTextConfig(bpe_dropout=0.2)
ALL = [PLAIN, DROPPING, BOTH, ParallelTextConfig(bidirectional=True, bpe_dropout=0.2)]


@pytest.fixture(autouse=True)
def small_pools(monkeypatch):
    monkeypatch.setattr(pair_data, "_POOL_SIZE", 256)


def data(stored: StoredPairs, config: ParallelTextConfig, *, seed: int = 3, **options: int) -> PairData:
    return PairData(stored, config, seed=seed, **{"batch_tokens": TOKENS, **options})


def epoch(given: PairData, number: int = 0) -> Iterator[Batch]:
    consumed, end = number * given.samples, (number + 1) * given.samples
    while consumed < end:
        batch = given.batch(consumed)
        yield batch
        consumed += batch.rows
    assert consumed == end


def rows(batch: Batch) -> Iterator[tuple[list[int], list[int]]]:
    """The ids of each source and each target."""
    assert batch.source is not None
    assert batch.source_lengths is not None
    for source, length, target in zip(batch.source, batch.source_lengths, batch.targets, strict=True):
        yield source[:length].tolist(), target[target != IGNORE_INDEX].tolist()


def texts(stored: StoredPairs, batches: Iterator[Batch]) -> list[tuple[str, str]]:
    decode = stored.tokenizer.decode
    return [(decode(source), decode(target)) for batch in batches for source, target in rows(batch)]


def equal(one: Batch, other: Batch) -> bool:
    fields = ("inputs", "targets", "source", "source_lengths")
    return all(np.array_equal(getattr(one, field), getattr(other, field)) for field in fields)


@pytest.mark.parametrize("config", ALL)
@pytest.mark.parametrize("number", [0, 1])
def test_each_pair_comes_once_an_epoch(stored, config, number):
    sources, targets = lines(COUNT)
    expected = list(zip(sources + sources[:20], targets + targets[:20], strict=True))
    if config.bidirectional:
        expected += [(target, source) for source, target in expected]
    given = data(stored, config)
    assert given.samples == len(expected)
    assert Counter(texts(stored, epoch(given, number))) == Counter(expected)


@pytest.mark.parametrize("config", ALL)
def test_a_resumed_run_sees_the_same_batches(stored, config):
    given = data(stored, config)
    batches = [*epoch(given), *epoch(given, 1)]
    places = [0, *itertools.accumulate(batch.rows for batch in batches)]
    for number in np.random.default_rng(0).permutation(len(batches))[:6].tolist():
        assert equal(data(stored, config).batch(places[number]), batches[number])
        assert equal(given.batch(places[number]), batches[number])


def test_within_a_batch_the_rest_of_it_follows(stored):
    given = data(stored, DROPPING)
    whole, rest = given.batch(0), given.batch(2)
    assert list(rows(rest)) == list(rows(whole))[2:]


@pytest.mark.parametrize("fraction", [0.01, 0.3, 0.5, 1.0])
def test_shares_of_a_batch_make_up_the_batch(stored, fraction):
    given = data(stored, DROPPING)
    whole, parts, consumed = given.batch(0), [], 0
    while consumed < whole.rows:
        part = given.batch(consumed, fraction=fraction)
        assert part.rows == min(math.ceil(fraction * whole.rows), whole.rows - consumed)
        parts, consumed = [*parts, *rows(part)], consumed + part.rows
    assert parts == list(rows(whole))


@pytest.mark.parametrize("config", ALL)
def test_rows_start_and_end(stored, config):
    end = stored.tokenizer.end_of_text
    special = stored.tokenizer.special_tokens
    tags = {special["<2en>"], special["<2de>"]} if config.bidirectional else set()
    seen = set()
    for batch in epoch(data(stored, config)):
        assert (batch.inputs[:, 0] == stored.tokenizer.start_of_text).all()
        for (source, target), read in zip(rows(batch), batch.inputs, strict=True):
            assert source[-1] == target[-1] == end
            assert read[1 : len(target)].tolist() == target[:-1]
            marks = [token for token in source[:-1] if token in special.values()]
            assert marks == (source[:1] if tags else [])
            seen |= set(marks)
            german = "ß" in stored.tokenizer.decode(target)
            assert not tags or source[0] == special["<2de>" if german else "<2en>"]
    assert seen == tags


@pytest.mark.parametrize("config", ALL)
def test_no_batch_is_beyond_its_limits(stored, config):
    for batch in epoch(data(stored, config)):
        assert batch.source is not None
        assert max(batch.source.size, batch.targets.size) <= TOKENS
    assert max(batch.rows for batch in epoch(data(stored, config, rows=5))) == 5
    assert {batch.rows for batch in epoch(data(stored, config, batch_tokens=1))} == {1}


@pytest.mark.parametrize("config", ALL)
def test_little_is_padding(stored, config, monkeypatch):
    monkeypatch.setattr(pair_data, "_POOL_SIZE", 1 << 14)
    real = positions = 0
    for batch in epoch(data(stored, config)):
        assert batch.source is not None
        assert batch.source_lengths is not None
        real += int(batch.source_lengths.sum()) + batch.n_targets
        positions += batch.source.size + batch.targets.size
    assert real / positions > 0.85


def test_epochs_and_seeds_have_orders_of_their_own(stored):
    given = data(stored, PLAIN)
    orders = [texts(stored, epoch(given, number)) for number in range(2)]
    orders.append(texts(stored, epoch(data(stored, PLAIN, seed=4))))
    batches = [{frozenset(texts(stored, iter([batch]))) for batch in epoch(given, number)} for number in range(2)]
    for one, other in itertools.combinations(orders, 2):
        assert sum(first == second for first, second in zip(one, other, strict=True)) < 20
    assert len(batches[0] & batches[1]) < len(batches[0]) / 10


def test_steps_and_tokens_of_an_epoch(stored):
    for config in ALL:
        given = data(stored, config)
        assert given.steps_per_epoch == pytest.approx(sum(1 for _ in epoch(given)), rel=0.1)
    given = data(stored, BOTH)
    assert given.tokens == sum(batch.n_targets for batch in epoch(given))


def test_without_dropout_tokens_are_the_tokenizers(stored):
    encode, end = stored.tokenizer.encode, stored.tokenizer.end_of_text
    sources, targets = lines(COUNT)
    expected = {(*encode(source), end): (*encode(target), end) for source, target in zip(sources, targets, strict=True)}
    for batch in epoch(data(stored, PLAIN)):
        for source, target in rows(batch):
            assert expected[tuple(source)] == tuple(target)


def test_dropout_differs_by_epoch_pair_and_place(stored):
    decode = stored.tokenizer.decode
    seen: dict[str, set[tuple[int, ...]]] = {}
    given = data(stored, DROPPING)
    for number in range(4):
        for batch in epoch(given, number):
            for source, _ in rows(batch):
                seen.setdefault(decode(source), set()).add(tuple(source))
    assert np.mean([len(found) for found in seen.values()]) > 3.5
    assert given.tokens < sum(batch.n_targets for batch in epoch(given))


def test_dropout_ends(stored):
    whole = data(stored, PLAIN)
    dropping = data(stored, DROPPING)
    ending = data(stored, dataclasses.replace(DROPPING, bpe_dropout_until=0.5))
    ending.set_total_steps(2 * dropping.steps_per_epoch)
    assert ending.steps_per_epoch == dropping.steps_per_epoch
    assert all(equal(*both) for both in zip(epoch(ending), epoch(dropping), strict=True))
    assert all(equal(*both) for both in zip(epoch(ending, 1), epoch(whole, 1), strict=True))


def test_the_end_of_dropout_moves_with_the_end_of_the_run(stored):
    """Told another number of steps, open data give the batches of data that were told it at first."""
    config = dataclasses.replace(DROPPING, bpe_dropout_until=0.5)
    moved, fresh = data(stored, config), data(stored, config)
    steps = moved.steps_per_epoch
    moved.set_total_steps(round(4 * steps))
    assert all(equal(*both) for both in zip(epoch(moved, 1), epoch(data(stored, DROPPING), 1), strict=True))
    for given in (moved, fresh):
        given.set_total_steps(round(2 * steps))
    assert all(equal(*both) for both in zip(epoch(moved, 1), epoch(fresh, 1), strict=True))
    assert not all(equal(*both) for both in zip(epoch(moved), epoch(moved, 1), strict=False))


def test_no_row_is_longer_than_the_context(stored):
    def longest(batches: Iterator[Batch]) -> int:
        return max(max(len(source), len(target)) for batch in batches for source, target in rows(batch))

    config = ParallelTextConfig(bpe_dropout=0.6)
    context = max(split.longest for split in stored.manifest.splits.values()) + 1
    assert longest(epoch(data(stored, config))) > context
    assert longest(epoch(data(stored, config, context=context))) <= context
    with pytest.raises(InputError, match=f"more than the context of {context}"):
        data(stored, BOTH, context=context)


def prepared(folder: Path, sides: tuple[list[str], list[str]], config: ParallelTextConfig) -> StoredPairs:
    source, target = write(folder, *sides)
    files = find_parallel_texts(config, source=[source], target=[target])
    corpus = survey.scan_parallel_corpus(files, DataConfig(validation="0"), config)
    of_target, of_source = load_or_train_pair_tokenizers(corpus, TokenizerConfig(vocab_size=300), config)
    return StoredPairs.open(prepare_corpus(corpus, of_target, parallel=config, source_tokenizer=of_source).folder)


def test_separate_vocabularies(tmp_path, monkeypatch):
    monkeypatch.setenv("LM_CACHE", str(tmp_path))
    config = ParallelTextConfig(separate_vocabularies=True, bpe_dropout=0.3)
    sides = lines(100)
    found = prepared(tmp_path, sides, config)
    assert found.source_tokenizer is not None
    read, written = found.source_tokenizer.decode, found.tokenizer.decode
    texts = [(read(ids), written(others)) for batch in epoch(data(found, config)) for ids, others in rows(batch)]
    assert sorted(texts) == sorted(zip(*sides, strict=True))


def test_dropout_differs_within_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("LM_CACHE", str(tmp_path))
    sentence = " banado" * 40
    found = prepared(tmp_path, ([sentence], [sentence]), DROPPING)
    ((source, target),) = rows(data(found, DROPPING).batch(0))
    for ids in (source, target):
        spelled = "|".join(found.tokenizer.token_bytes(token).decode() for token in ids[:-1])
        assert len(set(spelled.split(" "))) > 4
    assert source != target


@pytest.mark.parametrize("config", ALL)
def test_validation_has_each_target_once(stored, config):
    given = data(stored, config)
    found = texts(stored, given.validation())
    expected = given.references()
    assert Counter(found) == Counter((text.source, text.target) for text in expected)
    assert given.validation_bytes == sum(len(text.target.encode()) for text in expected)
    assert len(expected) == (120 if config.bidirectional else 60)
    assert given.references(7) == expected[:7]
    encode, end = stored.tokenizer.encode, stored.tokenizer.end_of_text
    ids = {tuple(source) for batch in given.validation() for source, _ in rows(batch)}
    assert ids == {(*([] if text.tag is None else [text.tag.id]), *encode(text.source), end) for text in expected}


def test_what_cannot_be_batched(stored, tmp_path, monkeypatch):
    monkeypatch.setenv("LM_CACHE", str(tmp_path))
    with pytest.raises(UsageError, match="need a size"):
        PairData(stored, PLAIN, seed=0)
    files = find_parallel_texts(
        PLAIN, **dict(zip(("source", "target"), ([path] for path in write(tmp_path, ["a"], ["b"])), strict=True))
    )
    corpus = survey.scan_parallel_corpus(files, DataConfig(validation="0"), PLAIN)
    tokenizer = tokenizer_training.train([], TokenizerConfig(kind="byte"), corpus_bytes=0).tokenizer
    single = StoredPairs.open(prepare_corpus(corpus, tokenizer, parallel=PLAIN).folder)
    assert list(data(single, PLAIN).validation()) == []
    assert data(single, PLAIN).batch(5).rows == 1
    with pytest.raises(UsageError, match="BPE dropout leaves out merges, and the source tokenizer has none"):
        data(single, DROPPING)
    with pytest.raises(UsageError, match="no special token <2de>"):
        data(single, BOTH)


def test_dropout_for_the_whole_of_a_run_continues_where_it_takes_longer(stored):
    whole = dataclasses.replace(DROPPING, bpe_dropout_until=1.0)
    planned = data(stored, whole)
    planned.set_total_steps(int(planned.steps_per_epoch))
    unplanned = data(stored, dataclasses.replace(DROPPING, bpe_dropout_until=0.5))
    for given in (planned, unplanned):
        assert all(equal(*both) for both in zip(epoch(given, 3), epoch(data(stored, DROPPING), 3), strict=True))
