"""What a time is enough for."""

import pytest

from lm.config.presets import build_run_config
from lm.training.planning.sizing import size_language_model, size_translation_model

RATE, MEGABYTE = 3e11, 1_000_000


@pytest.mark.parametrize("text_bytes", [0, 10_000, MEGABYTE, 10**9])
@pytest.mark.parametrize("seconds", [-5.0, 1.0, 60.0, 3600.0, 1e6])
def test_every_time_and_text_gives_settings_that_can_be_trained(seconds, text_bytes):
    size = size_language_model(seconds, flops_per_second=RATE, text_bytes=text_bytes)
    config = build_run_config(f"depth-{size.depth}", size.settings())
    assert config.training.batch_tokens >= config.model.context_length


@pytest.mark.parametrize("kind", ["bpe", "char", "byte"])
def test_so_does_every_kind_of_tokenizer(kind):
    assert build_run_config(
        "depth-1", size_language_model(60, flops_per_second=RATE, text_bytes=MEGABYTE, kind=kind).settings()
    )
    assert build_run_config(
        "translation-depth-1",
        size_translation_model(60, flops_per_second=RATE, text_bytes=MEGABYTE, kind=kind).settings(),
    )


@pytest.mark.parametrize("text_bytes", [0, 10_000, MEGABYTE, 10**9])
@pytest.mark.parametrize("seconds", [-5.0, 1.0, 60.0, 3600.0, 1e6])
def test_every_time_and_number_of_pairs_gives_settings_that_can_be_trained(seconds, text_bytes):
    size = size_translation_model(seconds, flops_per_second=RATE, text_bytes=text_bytes)
    config = build_run_config(f"translation-depth-{size.depth}", size.settings())
    assert config.model.n_layers == config.model.n_encoder_layers == size.depth
    assert config.training.batch_tokens >= 512
    assert config.tokenizer.vocab_size <= 16_384


def test_more_time_or_a_faster_machine_makes_larger_models():
    depths = [
        size_language_model(seconds, flops_per_second=RATE, text_bytes=MEGABYTE).depth
        for seconds in (10, 1000, 100_000)
    ]
    assert depths == sorted(set(depths))
    faster = size_language_model(10, flops_per_second=100 * RATE, text_bytes=MEGABYTE)
    assert faster.depth == size_language_model(1000, flops_per_second=RATE, text_bytes=MEGABYTE).depth
