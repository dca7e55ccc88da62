"""Batches made prefetcher are those that would have been made anyway."""

import numpy as np
import pytest
import torch

from lm.data.batch import Batch
from lm.training.prefetcher import BatchPrefetcher, pin_batch


class Asked:
    """Data of batches of eight rows that say what they follow; knows what it was asked for."""

    def __init__(self) -> None:
        self.places: list[tuple[int, float]] = []

    def batch(self, consumed: int, *, fraction: float = 1.0) -> Batch:
        self.places.append((consumed, fraction))
        ids = np.full((round(8 * fraction), 2), consumed)
        return Batch(ids, ids)


@pytest.fixture
def data() -> Asked:
    return Asked()


def test_the_batch_that_follows_is_made_once_and_ahead(data):
    prefetcher, consumed = BatchPrefetcher(data), 0
    fractions = [0.5, 0.75, 1.0, 1.0]
    for fraction, next_fraction in zip(fractions, [*fractions[1:], 1.0], strict=True):
        batch = prefetcher.batch(consumed, fraction=fraction, next_fraction=next_fraction)
        assert batch.rows == 8 * fraction
        assert (batch.inputs == consumed).all()
        consumed += batch.rows
    assert prefetcher.batch(26, fraction=1.0, next_fraction=1.0).rows == 8
    assert data.places[:5] == [(0, 0.5), (4, 0.75), (10, 1.0), (18, 1.0), (26, 1.0)]


@pytest.mark.parametrize(("consumed", "fraction"), [(100, 0.5), (4, 0.25)])
def test_another_one_than_was_prefetched_is_loaded_again(data, consumed, fraction):
    prefetcher = BatchPrefetcher(data)
    prefetcher.batch(0, fraction=0.5, next_fraction=0.5)
    batch = prefetcher.batch(consumed, fraction=fraction, next_fraction=1.0)
    assert (batch.rows, batch.inputs[0, 0]) == (8 * fraction, consumed)
    again = prefetcher.batch(consumed + batch.rows, fraction=1.0, next_fraction=1.0)
    assert (again.rows, again.inputs[0, 0]) == (8, consumed + batch.rows)


def test_a_batch_that_is_forgotten_is_made_again(data):
    """As when the end of a run is moved, and with it that of BPE dropout, after the batch was made."""
    prefetcher = BatchPrefetcher(data)
    prefetcher.batch(0, fraction=0.5, next_fraction=0.5)
    prefetcher.discard()
    assert (prefetcher.batch(4, fraction=0.5, next_fraction=0.5).inputs == 4).all()
    assert data.places[:3] == [(0, 0.5), (4, 0.5), (4, 0.5)]


def test_without_a_gpu_memory_stays_as_it_is(data, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    batch = data.batch(3)
    assert pin_batch(batch) is batch


def test_with_a_gpu_all_there_is_of_a_batch_is_pinned(data, monkeypatch):
    """Memory that is only copied stands for it here; what is not there stays so."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    ids = np.arange(12).reshape(3, 4)
    for batch in (Batch(ids, ids + 1), Batch(ids, ids + 1, ids + 2, np.array([4, 3, 2]))):
        for name, value in vars(pin_batch(batch)).items():
            given = getattr(batch, name)
            assert (value is None) == (given is None)
            assert given is None or ((value == given).all() and not np.shares_memory(value, given))
