"""What keeps a model from memorising what it sees many times."""

from itertools import product

import pytest

from lm.training.planning.regularisation import (
    choose_pair_regularisation,
    choose_text_regularisation,
)


def regularised(epochs, parameters=20, steps=500, learning_rate=0.01, **settings):
    return choose_text_regularisation(
        epochs, parameters_per_token=parameters, steps=steps, learning_rate=learning_rate, **settings
    )


def test_pairs_seen_often_lose_more_of_what_the_model_reads_and_knows():
    seldom, between, often = (choose_pair_regularisation(epochs, steps=1000) for epochs in (2, 10, 30))
    assert [each["model"]["dropout"] for each in (seldom, between, often)] == [0.1, 0.15, 0.2]
    assert [each["parallel"]["bpe_dropout"] for each in (seldom, between, often)] == [0.0, 0.05, 0.1]
    whole = choose_pair_regularisation(30, steps=1000, can_drop_merges=False)
    assert (whole["parallel"]["bpe_dropout"], whole["model"]) == (0.0, often["model"])


def test_batches_go_through_twice_where_a_text_would_be_memorised_unless_they_may_not():
    small, seldom, known = regularised(10, parameters=3), regularised(2, parameters=30), regularised(10, parameters=30)
    assert (small.forward_passes, seldom.forward_passes, known.forward_passes) == (1, 1, 2)
    assert known.settings()["training"]["r_drop"] > 0
    assert known.dropout > small.dropout  # without dropout the two passes are the same
    assert regularised(10, parameters=30, can_use_r_drop=False) == small


def test_weights_are_forgotten_as_often_however_long_the_run():
    limits = 0
    for epochs, steps, rate, shrinks in product((8, 20), (300, 3000, 30_000), (0.001, 0.02), (True, False)):
        found = regularised(epochs, steps=steps, learning_rate=rate, can_shrink_batch=shrinks)
        forgettings = found.weight_decay * rate * steps / found.forward_passes / found.batch_fraction
        limits += found.weight_decay in {0.1, 2.0}
        assert found.weight_decay in {0.1, 2.0} or forgettings == pytest.approx(14, rel=0.05)
    assert limits < 18


@pytest.mark.parametrize("steps", [1, 10, 1e6])
def test_weight_decay_never_undoes_a_step(steps):
    assert 0 < regularised(100, steps=steps, learning_rate=0.02).weight_decay <= 2
