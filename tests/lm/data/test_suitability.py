"""Warnings stand at the bounds that they name."""

from __future__ import annotations

import pytest

from lm.data import training_data


@pytest.mark.parametrize(("tokens", "warned"), [(0, True), (1999, True), (2000, False), (10**9, False)])
def test_a_model_is_too_large_below_a_fiftieth_of_a_token_a_parameter(tokens, warned):
    assert [("far too large" in each) for each in training_data.warn_model_too_large(tokens, 100_000)] == [
        True
    ] * warned


@pytest.mark.parametrize(
    ("tokens", "epochs", "warned"),
    [(100_000, 1.0, False), (100_001, 1.0, True), (10**9, 1e-4, False), (10**9, 1.1e-4, True), (100_000, 9.0, False)],
)
def test_a_model_is_too_small_above_a_thousand_tokens_a_parameter_that_it_sees(tokens, epochs, warned):
    assert len(training_data.warn_model_too_small(tokens, 100, epochs=epochs)) == warned


@pytest.mark.parametrize(
    ("tokens", "epochs", "warned"), [(99, 20.0, False), (99, 20.5, True), (100, 500.0, False), (1, 0.1, False)]
)
def test_a_text_comes_too_often_beyond_twenty_epochs_if_it_has_fewer_tokens_than_parameters(tokens, epochs, warned):
    assert len(training_data.warn_too_many_epochs(tokens, 100, epochs=epochs, is_evaluated=True)) == warned


def test_only_what_is_evaluated_can_run_out_of_patience():
    (evaluated,), (blind,) = (
        training_data.warn_too_many_epochs(9, 100, epochs=400, is_evaluated=each) for each in (True, False)
    )
    assert evaluated.startswith("400 times the same small text")
    assert evaluated.settings == ("patience=3", "steps")
    assert blind.settings == ("steps",)
