"""Groups are encoded ahead of who uses them, in order."""

from dataclasses import dataclass

import pytest

from lm.corpus import text_corpus
from lm.corpus.text_corpus import encode_groups
from lm.errors import InputError


@dataclass(frozen=True)
class Corpus:
    """Numbers as texts."""

    count: int
    name: str = "numbers.txt"
    extra: int = 0

    @property
    def bytes(self) -> int:
        return sum(len(str(number)) for number in range(self.count)) + self.extra

    def items(self):
        return (Item(number) for number in range(self.count))


@dataclass(frozen=True)
class Item:
    number: int

    @property
    def texts(self):
        return (str(self.number),)

    @property
    def location(self):
        return f"numbers.txt: line {self.number + 1}"


def squares(group):
    return [item.number**2 for item in group]


def test_each_item_has_what_was_made_of_it_in_order(monkeypatch):
    monkeypatch.setattr(text_corpus, "GROUP_CHARACTERS", 7)
    seen, corpus = [], Corpus(200)
    found = list(encode_groups(corpus, corpus.items(), squares, progress=lambda *now: seen.append(now)))
    assert [item.number for group, _ in found for item in group] == list(range(200))
    assert [square for _, made in found for square in made] == [number**2 for number in range(200)]
    assert len(seen) == len(found) > 50
    assert seen == sorted(seen)
    assert seen[-1] == (corpus.bytes, corpus.bytes)


def test_encoding_runs_ahead_by_a_bounded_amount(monkeypatch):
    monkeypatch.setattr(text_corpus, "GROUP_CHARACTERS", 1)
    taken = []

    def items():
        for item in Corpus(100).items():
            taken.append(item)
            yield item

    groups = encode_groups(Corpus(100), items(), squares)
    for number in range(1, 90):
        next(groups)
        assert number < len(taken) <= number + 3


def test_an_item_that_cannot_be_encoded_is_named():
    def refusing(group):
        if any(item.number == 3 for item in group):
            raise InputError("no token for '3'")
        return squares(group)

    with pytest.raises(InputError, match=r"numbers.txt: line 4: no token for '3'"):
        list(encode_groups(Corpus(9), Corpus(9).items(), refusing))


@pytest.mark.parametrize("extra", [-1, 1])
def test_a_corpus_that_changed_since_it_was_surveyed_is_refused(extra):
    with pytest.raises(InputError, match=r"numbers.txt: the corpus changed while it was read; try again"):
        list(encode_groups(Corpus(9, extra=extra), Corpus(9).items(), squares))
