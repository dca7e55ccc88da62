import random
from dataclasses import dataclass

import numpy as np

from lm.evaluation.file_scoring import WindowBatcher


@dataclass(frozen=True)
class Window:
    number: int
    tokens: np.ndarray


def windows(lengths) -> list[Window]:
    return [Window(number, np.zeros(length, dtype=np.int64)) for number, length in enumerate(lengths)]


def padding(batches) -> float:
    """The share of positions that are padding."""
    lengths = [[len(one.tokens) for one in batch] for batch in batches]
    return 1 - sum(map(sum, lengths)) / sum(len(each) * max(each) for each in lengths)


def test_scores_are_in_reading_order_again_whatever_the_lengths():
    chance = random.Random(0)
    for count in (0, 1, 15, 16, 17, 300, 700):
        read = windows(chance.choice([chance.randint(1, 99), 99]) for _ in range(count))
        packing = WindowBatcher(read, 16)
        scored = ([window.number for window in batch] for batch in packing.batches())
        assert [number for part in packing.restore_order(scored) for number in part] == list(range(count))


def test_full_windows_stay_in_reading_order():
    read = windows([50] * 40)
    assert list(WindowBatcher(read, 16).batches()) == [read[:16], read[16:32], read[32:]]


def test_windows_of_different_lengths_have_little_padding():
    chance = random.Random(1)
    read = windows(chance.randint(1, 200) for _ in range(512))
    in_order = [read[first : first + 16] for first in range(0, 512, 16)]
    packed = list(WindowBatcher(read, 16).batches())
    assert max(map(len, packed)) == 16
    assert padding(packed) < 0.1
    assert padding(in_order) > 0.4


def test_what_is_read_ahead_is_bounded():
    taken = []
    batches = WindowBatcher((taken.append(one) or one for one in windows([1, 50] * 1000)), 4).batches()
    next(batches)
    assert len(taken) == 64
