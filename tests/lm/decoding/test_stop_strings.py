import random

import pytest

from lm.decoding.batching import StopStringStream


class Pieces:
    """A stream whose token i is the i-th piece of a text."""

    def __init__(self, pieces, rest=""):
        self.pieces, self.rest = pieces, rest

    def feed(self, index):
        return self.pieces[index]

    def finish(self):
        return self.rest


def shown(pieces, stops, rest=""):
    """What a reader sees after each token, and whether a stop string was found."""
    text = StopStringStream(Pieces(pieces, rest), stops)
    parts = []
    for index in range(len(pieces)):
        if not text.stopped:
            parts.append(text.feed(index))
    parts.append(text.finish())
    return parts, text.stopped


def cut_by_hand(text, stops):
    """Reads one character after another until the text ends with a stop string; takes the longest such."""
    for end in range(len(text) + 1):
        if ending := [stop for stop in stops if text[:end].endswith(stop)]:
            return text[: end - len(max(ending, key=len))], True
    return text, False


@pytest.mark.parametrize(
    ("pieces", "stops", "expected"),
    [
        (["one ", "two"], [], "one two"),
        (["one ", "END", " two"], ["END"], "one "),
        (["one E", "N", "D two"], ["END"], "one "),
        (["one E", "N", "d two"], ["END"], "one ENd two"),
        (["one EN"], ["END"], "one EN"),
        (["EEN", "EEND"], ["END"], "EENE"),
        (["END"], ["END"], ""),
        (["a", "b", "c"], ["abc", "b"], "a"),
        (["\n", "\n", "x"], ["\n\n"], ""),
        (["狐", "と", "梟"], ["と梟"], "狐"),
    ],
)
def test_a_text_ends_before_a_stop_string(pieces, stops, expected):
    parts, stopped = shown(pieces, stops)
    assert "".join(parts) == expected
    assert stopped == (expected != "".join(pieces))


def test_the_same_text_however_it_is_cut_and_no_part_of_a_stop_string_before_it_is_certain():
    for number in range(2000):
        chance = random.Random(number)
        text = "".join(chance.choices("ab\n", k=chance.randint(0, 12)))
        stops = ["".join(chance.choices("ab\n", k=chance.randint(1, 4))) for _ in range(chance.randint(1, 3))]
        cuts = sorted(chance.choices(range(len(text) + 1), k=4))
        pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        expected, stopped = cut_by_hand(text, stops)
        parts, found = shown(pieces[:-1], stops, rest=pieces[-1])
        assert ("".join(parts), found) == (expected, stopped), (pieces, stops)
        for count in range(len(pieces)):
            seen, read = "".join(parts[:count]), "".join(pieces[:count])
            assert expected.startswith(seen)
            for stop in stops:  # what may be the beginning of a stop string is held back, and no more
                assert not any(seen.endswith(stop[:size]) and read == seen for size in range(1, len(stop)))
            assert len(read) - len(seen) < max(map(len, stops)) or found


def test_text_is_returned_as_soon_as_it_is_certain():
    parts, _ = shown(["one ", "two E", "x"], ["END"])
    assert parts == ["one ", "two ", "Ex", ""]
