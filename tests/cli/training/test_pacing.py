"""How often a run under a budget evaluates follows from how long that takes."""

from __future__ import annotations

import pytest

from cli.training import clock
from cli.training.pacing import _evaluations
from lm.config.presets import configure
from lm.training.budget import Cost, aside


@pytest.fixture
def config(monkeypatch):
    """Of a run that is given ten minutes, which begin now."""
    monkeypatch.setattr(clock, "elapsed", lambda: 0.0)
    return configure("tiny", {"training": {"budget": "10m", "bleu_sentences": 500}})


def test_cheap_evaluations_are_ten_at_most(config):
    chosen, each = _evaluations(config, Cost(loss=0.1, sentence=0.0), steps=950)
    assert chosen == {"evaluate_every": 100}
    assert 0.1 < each < 1


def test_the_time_that_is_set_aside_is_never_exceeded(config):
    for loss in (5.0, 20.0, 70.0):
        chosen, each = _evaluations(config, Cost(loss=loss, sentence=0.0), steps=1000)
        often = 1 if not chosen["evaluate_every"] else round(1000 / chosen["evaluate_every"] + 0.5)
        assert often * each <= max(aside(600.0), each)


def test_an_evaluation_that_takes_all_the_time_comes_once_with_a_warning(config, capsys):
    chosen, _ = _evaluations(config, Cost(loss=1000.0, sentence=0.0), steps=1000)
    assert chosen["evaluate_every"] == 0
    assert "hold out less (--validation)" in capsys.readouterr().err


def test_as_many_sentences_are_translated_as_there_is_time_for(config):
    few, _ = _evaluations(config, Cost(loss=0.1, sentence=1.0), steps=1000)
    some, _ = _evaluations(config, Cost(loss=0.1, sentence=0.05), steps=1000)
    all_of_them, _ = _evaluations(config, Cost(loss=0.1, sentence=1e-4), steps=1000)
    assert few["bleu_sentences"] == 100 <= some["bleu_sentences"] <= all_of_them["bleu_sentences"] == 500
