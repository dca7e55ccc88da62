"""Windows account for every token once, with enough context; of masked models on either side."""

import itertools

import numpy as np
import pytest

from lm.config.evaluation import PerplexityConfig
from lm.evaluation.perplexity import BatchScored, FileScore, measure_perplexity
from lm.evaluation.scoring_windows import CausalWindowSplitter, MaskedWindowSplitter
from lm.evaluation.window_scorers import TextScorer, build_window_scorer
from lm.text.find import find_text_files
from lm.tokenizer.special_tokens import SpecialTokenFrame
from tests.lm.evaluation.small_models import BPE, TEXT, make_model


@pytest.mark.parametrize(("context", "stride"), [(16, 16), (16, 8), (16, 1), (7, 3), (1, 1), (300, 300)])
@pytest.mark.parametrize("start_token", [None, 999])
def test_windows_account_for_every_token_once_however_a_document_comes(context, stride, start_token):
    for length, parts in itertools.product((0, 1, 2, 15, 16, 17, 18, 100), (1, 3, 100)):
        splitter = CausalWindowSplitter(context=context, stride=stride, start_token=start_token)
        windows = [w for part in np.array_split(np.arange(length), parts) for w in splitter.push(part)]
        windows += splitter.finish()
        accounted = [
            token for w in windows for token in [*w.tokens[: w.unscored], *w.tokens[len(w.tokens) - w.scored :]]
        ]
        assert accounted == list(range(length))
        assert all(len(w.tokens) - 1 <= context for w in windows)
        assert sum(w.unscored for w in windows) == (start_token is None and length > 0)
        for later in windows[1:]:
            assert len(later.tokens) - 1 - later.scored >= context - stride


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
def test_every_token_is_accounted_for_once_in_order(frame, context, stride):
    for length, parts in itertools.product((0, 1, 5, 8, 9, 40), (1, 3)):
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
    scored = [window.tokens[place] for window in found for place in window.scored_positions(score_every=every)]
    assert scored == list(range(0, 40, every))


@pytest.fixture(scope="module")
def model():
    return make_model(BPE.vocab_size)


@pytest.fixture
def files(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(TEXT, encoding="utf-8")
    return find_text_files([str(tmp_path)])


def test_figures_are_those_of_the_files_and_every_segment_comes_once(model, files):
    scorer = TextScorer.from_config(model, BPE, PerplexityConfig(context=8, stride=3, batch_size=2))
    window_scorer = build_window_scorer(model, BPE, context=8, stride=3)
    expected = list(measure_perplexity(window_scorer, BPE, files, batch_size=2))
    scores: list[FileScore] = []
    seen: list[BatchScored] = []
    segments = list(scorer.score_segments(files, scores=scores, on_batch=seen.append))
    assert scores == [event for event in expected if isinstance(event, FileScore)]
    assert [scored.tokens for scored in seen] == [event.tokens for event in expected if isinstance(event, BatchScored)]
    assert sum(len(segment.nats) for segment in segments) == seen[-1].tokens
