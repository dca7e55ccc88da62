"""Windows for masked models: every token is accounted for once, with as much on either side as promised."""

from __future__ import annotations

import numpy as np
import pytest

from lm.evaluation.windows import MaskedWindowSplitter
from lm.tokenizer.special_tokens import SpecialTokenFrame

START, END = 1000, 1001


def windows(length: int, *, context: int, stride: int, frame: SpecialTokenFrame, parts: int = 1):
    splitter = MaskedWindowSplitter(context=context, stride=stride, frame=frame)
    for part in np.array_split(np.arange(length), parts):
        yield from splitter.push(part)
    yield from splitter.finish()


@pytest.mark.parametrize(
    "frame",
    [
        SpecialTokenFrame(),
        SpecialTokenFrame((START,), (END,)),
        SpecialTokenFrame((START,)),
        SpecialTokenFrame((), (END,)),
    ],
)
@pytest.mark.parametrize(("context", "stride"), [(8, 4), (8, 8), (8, 1), (7, 2), (3, 2), (2, 1)])
@pytest.mark.parametrize("length", [0, 1, 5, 8, 9, 40])
@pytest.mark.parametrize("parts", [1, 3])
def test_every_token_is_accounted_for_once_in_order(frame, context, stride, length, parts):
    found = list(windows(length, context=context, stride=stride, frame=frame, parts=parts))
    accounted = [window.tokens[window.first : window.last] for window in found]
    np.testing.assert_array_equal(np.concatenate([np.empty(0, dtype=np.int64), *accounted]), np.arange(length))
    assert [window.number for window in found] == [tokens[0] for tokens in accounted]
    whole = [*frame.before, *range(length), *frame.after]
    for window in found:
        assert len(window.tokens) <= context
        first = whole.index(window.tokens[0])
        assert window.tokens.tolist() == whole[first : first + len(window.tokens)]


@pytest.mark.parametrize(("context", "stride"), [(8, 4), (9, 2), (16, 8)])
def test_each_token_sees_enough_on_either_side(context, stride):
    whole = [START, *range(100), END]
    for window in windows(100, context=context, stride=stride, frame=SpecialTokenFrame((START,), (END,))):
        for place in range(window.first, window.last):
            there = whole.index(window.tokens[place])
            least = (context - stride) // 2
            assert place >= min(least, there)
            assert len(window.tokens) - 1 - place >= min(least, len(whole) - 1 - there)


@pytest.mark.parametrize("every", [1, 2, 5, 50])
def test_each_nth_token_of_a_document_is_scored(every):
    found = windows(40, context=8, stride=4, frame=SpecialTokenFrame((START,)))
    scored = [window.tokens[place] for window in found for place in window.scored_positions(every=every)]
    assert scored == list(range(0, 40, every))
