"""What a time is enough for, and what keeps a model from memorising what it sees many times."""

from itertools import product

import pytest

from lm.config.presets import build_run_config
from lm.training.rules import choose_pair_regularisation, choose_size, choose_text_regularisation

RATE, MEGABYTE = 3e11, 1_000_000


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("kind", ["bpe", "char", "byte"])
def test_every_time_and_corpus_gives_settings_that_can_be_trained(pairs, kind):
    for text_bytes in (0, 10_000, MEGABYTE, 10**9):
        for seconds in (1.0, 60.0, 3600.0, 1e6):
            size = choose_size(seconds * RATE, text_bytes=text_bytes, pairs=pairs, kind=kind)
            config = build_run_config(f"{'translation-' if pairs else ''}depth-{size.depth}")
            assert config.model.n_layers == size.depth
            assert size.batch_tokens >= (512 if pairs else config.model.context_length)
            assert size.vocab_size <= 16_384


def test_more_time_or_a_faster_machine_makes_larger_models():
    depths = [choose_size(seconds * RATE, text_bytes=MEGABYTE).depth for seconds in (10, 1000, 100_000)]
    assert depths == sorted(set(depths))


def test_a_third_layer_sees_enough_tokens_or_epochs():
    """As measured: not in two minutes of 2.9e10 FLOP/s on 400 kB, but on 100 kB, and in five minutes."""
    depths = [choose_size(flops, text_bytes=size).depth for flops, size in ((3e12, 4e5), (3e12, 1e5), (8e12, 4e5))]
    assert depths == [2, 3, 3]


def regularised(epochs, parameters=20, steps=500, learning_rate=0.01, **settings):
    """Dropout, weight decay, R-Drop, and the fraction of the batch."""
    chosen, fraction = choose_text_regularisation(
        epochs, parameters_per_token=parameters, steps=steps, learning_rate=learning_rate, **settings
    )
    return chosen["model"]["dropout"], chosen["training"]["weight_decay"], chosen["training"]["r_drop"], fraction


def test_pairs_seen_often_lose_more_of_what_the_model_reads_and_knows():
    seldom, between, often = (choose_pair_regularisation(epochs, steps=1000) for epochs in (2, 10, 30))
    assert [each["model"]["dropout"] for each in (seldom, between, often)] == [0.1, 0.15, 0.2]
    assert [each["parallel"]["bpe_dropout"] for each in (seldom, between, often)] == [0.0, 0.05, 0.1]
    whole = choose_pair_regularisation(30, steps=1000, can_drop_merges=False)
    assert (whole["parallel"]["bpe_dropout"], whole["model"]) == (0.0, often["model"])


def test_batches_go_through_twice_where_a_text_would_be_memorised_unless_they_may_not():
    small, seldom, known = regularised(10, parameters=3), regularised(2, parameters=30), regularised(10, parameters=30)
    assert small[2] == seldom[2] == 0 < known[2]
    assert known[0] > small[0]  # without dropout the two passes are the same
    assert regularised(10, parameters=30, can_use_r_drop=False) == small


def test_weights_are_forgotten_as_often_however_long_the_run():
    limits = 0
    for epochs, steps, rate, shrinks in product((8, 20), (300, 3000, 30_000), (0.001, 0.02), (True, False)):
        _, decay, r_drop, fraction = regularised(epochs, steps=steps, learning_rate=rate, can_shrink_batch=shrinks)
        limits += decay in {0.1, 2.0}
        forgettings = decay * rate * steps / (2 if r_drop else 1) / fraction
        assert decay in {0.1, 2.0} or forgettings == pytest.approx(14, rel=0.05)
    assert limits < 18
