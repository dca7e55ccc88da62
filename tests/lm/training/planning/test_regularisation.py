"""What keeps a model from memorising what it sees many times."""

from itertools import product

import pytest

from lm.training.planning.regularisation import (
    Regularisation,
    choose_pair_regularisation,
    choose_text_regularisation,
    compute_novelty,
    estimate_bits_per_byte,
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


@pytest.mark.parametrize(("steps", "warmup"), [(1, 10), (300, 30), (1999, 200), (100_000, 200)])
def test_few_steps_warm_up_shortly(steps, warmup):
    assert choose_pair_regularisation(1, steps=steps)["training"]["warmup_steps"] == warmup


def test_batches_go_through_twice_where_a_text_would_be_memorised_unless_they_may_not():
    small, seldom, known = regularised(10, parameters=3), regularised(2, parameters=30), regularised(10, parameters=30)
    assert (small.forward_passes, seldom.forward_passes, known.forward_passes) == (1, 1, 2)
    assert known.settings()["training"]["r_drop"] > 0
    assert known.dropout > small.dropout  # without dropout the two passes are the same
    assert regularised(10, parameters=30, can_use_r_drop=False) == small


def test_with_two_passes_a_batch_follows_the_square_root_of_the_tokens_if_it_may():
    known = regularised(10, parameters=30, can_shrink_batch=True)
    assert known.batch_fraction == pytest.approx(known.forward_passes**-0.5)
    assert regularised(10, parameters=3, can_shrink_batch=True).batch_fraction == 1
    assert regularised(10, parameters=30).batch_fraction == 1


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


def test_a_text_of_patterns_is_less_new_and_easier():
    prose, patterned = [4.0, 2.0, 1.95, 1.96, 2.0], [4.0, 2.0, 1.0, 0.7, 0.5]
    assert compute_novelty(prose) == pytest.approx(0.975)
    assert compute_novelty(patterned) == pytest.approx(0.25)
    assert compute_novelty([4.0, 5.0, 6.0]) == 1
    assert estimate_bits_per_byte(prose) / min(prose) > estimate_bits_per_byte(patterned) / min(patterned)


@pytest.mark.parametrize(
    ("epochs", "steps", "learning_rate", "expected"),
    [
        (1, 500, 0.01, (0.0, 0.1)),
        (2.5, 500, 0.01, (0.0, 0.1)),
        (3, 530, 0.01, (0.02, 0.26)),  # a fifth of the way to 0.1 and to 7: 1.4 / 5.3
        (3.75, 500, 0.01, (0.05, 0.7)),  # half of the way: 3.5 / 5
        (5, 500, 0.01, (0.1, 1.4)),
        (6.25, 1000, 0.01, (0.1, 1.05)),  # half of the way from 7 to 14: 10.5 / 10
        (7.5, 1000, 0.01, (0.1, 1.4)),
        (100, 1000, 0.01, (0.1, 1.4)),
        (100, 1000, 0.02, (0.1, 0.7)),
        (100, 600, 0.01, (0.1, 2.0)),
        (100, 30_000, 0.01, (0.1, 0.1)),
        (100, 0, 0.02, (0.1, 2.0)),
    ],
)
def test_dropout_and_weight_decay_by_hand(epochs, steps, learning_rate, expected):
    found = regularised(epochs, parameters=0, steps=steps, learning_rate=learning_rate)
    assert (found.dropout, found.weight_decay, found.r_drop) == (*expected, 0.0)
    assert found.settings() == {
        "model": {"dropout": expected[0]}, "training": {"weight_decay": expected[1], "r_drop": 0.0},
    }  # fmt: skip


def test_what_is_memorised_goes_through_twice_in_half_of_the_steps():
    """From 200 epochs, times parameters for each token, on; weights are forgotten 14 times over the steps that remain:
    14 / (0.02 · 500).
    """
    known, nearly = (regularised(10, parameters=number, steps=1000, learning_rate=0.02) for number in (20, 19.99))
    assert (known, known.forward_passes) == (Regularisation(0.2, 1.4, 0.5), 2)
    assert (nearly, nearly.forward_passes) == (Regularisation(0.1, 0.7, 0.0), 1)


def test_what_several_tokens_leave_open_is_a_share_of_what_one_does():
    counted = [1.0, 4.0, 3.0, 2.0, 5.0]
    assert compute_novelty(counted) == 0.5
    assert estimate_bits_per_byte([9.0, 4.0, 3.0, 1.0]) == 0.5  # 1 · √¼
