"""What a time is enough for."""

import pytest

from lm.config.presets import build_run_config
from lm.training.planning.sizing import choose_size

RATE, MEGABYTE = 3e11, 1_000_000


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("kind", ["bpe", "char", "byte"])
def test_every_time_and_corpus_gives_settings_that_can_be_trained(pairs, kind):
    for text_bytes in (0, 10_000, MEGABYTE, 10**9):
        for seconds in (-5.0, 1.0, 60.0, 3600.0, 1e6):
            size = choose_size(seconds, flops_per_second=RATE, text_bytes=text_bytes, pairs=pairs, kind=kind)
            config = build_run_config(f"{'translation-' if pairs else ''}depth-{size.depth}", size.settings())
            assert config.model.n_layers == size.depth
            assert config.training.batch_tokens >= (512 if pairs else config.model.context_length)
            assert config.tokenizer.vocab_size <= 16_384


def test_more_time_or_a_faster_machine_makes_larger_models():
    depths = [choose_size(seconds, flops_per_second=RATE, text_bytes=MEGABYTE).depth for seconds in (10, 1000, 100_000)]
    assert depths == sorted(set(depths))
    assert choose_size(10, flops_per_second=100 * RATE, text_bytes=MEGABYTE).depth == depths[1]
