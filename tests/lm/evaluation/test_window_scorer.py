"""A scorer measures what `measure_perplexity` does, in the windows that the settings mean."""

import pytest

from lm.config.evaluation import PerplexityConfig
from lm.errors import UsageError
from lm.evaluation.perplexity import BatchScored, FileScore, measure_perplexity
from lm.evaluation.window_scorer import TextScorer, build_window_scorer
from lm.text.files import find_text_files
from tests.lm.evaluation.small_models import BPE, SEPARATOR, TEXT, make_model


@pytest.fixture(scope="module")
def model():
    return make_model(BPE.vocab_size)


@pytest.fixture
def files(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(TEXT, encoding="utf-8")
    return find_text_files([str(tmp_path)])


def test_windows_are_those_of_the_settings_or_half_of_the_context_apart(model):
    context = model.config.context_length
    usual = TextScorer.from_config(model, BPE, PerplexityConfig(), separator=SEPARATOR)
    assert (usual.context, usual.stride, usual.batch_size) == (context, context // 2, PerplexityConfig().batch_size)
    chosen = TextScorer.from_config(
        model, BPE, PerplexityConfig(context=8, stride=3, batch_size=2), separator=SEPARATOR
    )
    assert (chosen.context, chosen.stride, chosen.batch_size) == (8, 3, 2)
    with pytest.raises(UsageError, match="stride 9"):
        TextScorer.from_config(model, BPE, PerplexityConfig(context=8, stride=9), separator=SEPARATOR)


def test_figures_are_those_of_the_files_and_every_segment_comes_once(model, files):
    scorer = TextScorer.from_config(
        model, BPE, PerplexityConfig(context=8, stride=3, batch_size=2), separator=SEPARATOR
    )
    window_scorer = build_window_scorer(model, BPE, context=8, stride=3)
    expected = list(measure_perplexity(window_scorer, BPE, files, separator=SEPARATOR, batch_size=2))
    scores: list[FileScore] = []
    seen: list[BatchScored] = []
    segments = list(scorer.score_segments(files, scores=scores, on_batch=seen.append))
    assert scores == [event for event in expected if isinstance(event, FileScore)]
    assert [scored.tokens for scored in seen] == [event.tokens for event in expected if isinstance(event, BatchScored)]
    assert sum(len(segment.nats) for segment in segments) == seen[-1].tokens
