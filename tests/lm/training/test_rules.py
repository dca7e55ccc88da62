"""What a time is enough for, and what keeps a model from memorising what it sees many times."""

from itertools import product

import pytest

from lm.config.presets import build_run_config
from lm.training.rules import choose_members, choose_pair_regularisation, choose_size, choose_text_regularisation

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


def test_another_layer_sees_enough_tokens_or_epochs():
    """As measured with 5e10 FLOP/s on 400 kB and 100 kB, of which the latter is seen more often in equal time."""
    minutes = {4e5: (1, 2, 5, 10, 20), 1e5: (1, 2, 5)}
    depths = {
        size: [choose_size(60 * 5e10 * each, text_bytes=size).depth for each in times]
        for size, times in minutes.items()
    }
    assert depths == {4e5: [2, 3, 3, 4, 4], 1e5: [3, 3, 4]}


def test_a_text_that_was_seen_often_has_several_models():
    """As measured with 5e10 FLOP/s: on 400 kB from five minutes on, on a megabyte after ten."""
    minutes = (1, 2, 5, 10, 20, 40, 10_000)
    several = {
        size: [choose_members(60 * 5e10 * each, text_bytes=int(size)) for each in minutes] for size in (4e5, 1e6)
    }
    assert several == {4e5: [1, 1, 2, 5, 8, 8, 8], 1e6: [1, 1, 1, 1, 2, 4, 8]}
    assert choose_members(20 * 60 * 2.4e11, text_bytes=3_900_000) == 2
    assert choose_members(1.1e15, text_bytes=1_115_394, kind="char") == 8  # as measured with 4.6e11 FLOP/s
    assert choose_members(1.0, text_bytes=0) == choose_members(1e15, text_bytes=10**9) == 1


def test_pairs_seen_often_lose_more_of_what_the_model_reads_and_knows():
    seldom, between, often = (choose_pair_regularisation(epochs) for epochs in (2, 18, 30))
    assert [each["model"]["dropout"] for each in (seldom, between, often)] == [0.1, 0.15, 0.2]
    assert [each["parallel"]["bpe_dropout"] for each in (seldom, between, often)] == [0.0, 0.05, 0.1]
    whole = choose_pair_regularisation(30, can_drop_merges=False)
    assert (whole["parallel"]["bpe_dropout"], whole["model"]) == (0.0, often["model"])


@pytest.mark.parametrize("epochs", [8, 20])
def test_weights_are_forgotten_as_often_however_long_the_run(epochs):
    def forgettings(steps, rate):
        chosen = choose_text_regularisation(epochs, steps=steps, learning_rate=rate)
        return chosen["training"]["weight_decay"] * rate * steps

    expected = forgettings(1000, 0.01)
    assert expected > 1
    for steps, rate in product((500, 3000), (0.01, 0.02)):
        assert forgettings(steps, rate) == pytest.approx(expected, rel=0.05)
    assert forgettings(1000, 0.0) == 0
    one, several = (
        choose_text_regularisation(epochs, steps=9, learning_rate=0.1, members=n)["model"]["dropout"] for n in (1, 8)
    )
    assert 0 < several < one / 2
