"""What a time is enough for."""

import pytest

from lm.config.presets import build_run_config
from lm.training.planning.sizing import ModelSize, choose_held_out_fraction, size_language_model, size_translation_model

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


@pytest.mark.parametrize(
    ("operations", "depth", "vocabulary", "tokens", "batch"),
    [
        # 2.5e13: a quarter of a token for each parameter of the blocks is enough. 3.10 M of them, and 1.54 M for the
        # vocabulary, see 0.818 M tokens: 0.26 of one. At depth 4, 7.34 M and 2.05 M, it would be 0.05.
        (2.5e13, 3, 8000, 818_000, 3072),
        # An eighth of that: 0.140 are enough. Depth 2, 0.92 M and 1.02 M, sees 244,000, at depth 3 they were 0.03.
        (3.125e12, 2, 8000, 244_000, 1219),
        # Ten times as much: 0.476 are enough. Depth 4 would see 4.04 M tokens of 4.2 bytes, all targets 8.5 times; with
        # the smaller vocabulary it sees 4.53 M, 0.62 of one. Depth 5 would see 2.43 M, 0.17.
        (2.5e14, 4, 4000, 4_530_000, 4096),
    ],
)
def test_the_deepest_model_that_sees_enough_pairs(operations, depth, vocabulary, tokens, batch):
    size = size_translation_model(100, flops_per_second=operations / 100, text_bytes=4 * MEGABYTE)
    assert (size.depth, size.vocab_size) == (depth, vocabulary)
    assert size.tokens == pytest.approx(tokens, rel=0.01)
    assert size.batch_tokens == pytest.approx(batch, rel=0.01)


@pytest.mark.parametrize("seconds", [1.0, 60.0, 3600.0])
def test_decoder_only_of_twice_the_layers_sees_fewer_tokens_of_the_same_size(seconds):
    """Of a pair both sides go through all of its layers: 48 multiply-adds in the place of 28."""
    two, one = (
        size_translation_model(seconds, flops_per_second=RATE, text_bytes=MEGABYTE, decoder_only=stack)
        for stack in (False, True)
    )
    assert one.depth <= two.depth
    if one.depth == two.depth:
        assert 28 / 48 < one.tokens / two.tokens < 1
    model = build_run_config(
        f"translation-depth-{one.depth}", {**one.settings(), "model": {"decoder_only": True}}
    ).model
    assert (model.n_layers, model.n_encoder_layers) == (2 * one.depth, 0)


def test_more_pairs_get_a_larger_vocabulary():
    sizes = [
        size_translation_model(10, flops_per_second=RATE, text_bytes=number)
        for number in (50_000, 900_000, MEGABYTE, 10**9)
    ]
    assert [size.vocab_size for size in sizes] == [1000, 4000, 8000, 16_384]


def test_more_time_or_a_faster_machine_makes_larger_models():
    depths = [
        size_language_model(seconds, flops_per_second=RATE, text_bytes=MEGABYTE).depth
        for seconds in (10, 1000, 100_000)
    ]
    assert depths == sorted(set(depths))
    faster = size_language_model(10, flops_per_second=100 * RATE, text_bytes=MEGABYTE)
    assert faster.depth == size_language_model(1000, flops_per_second=RATE, text_bytes=MEGABYTE).depth


@pytest.mark.parametrize(("text_bytes", "depth"), [(20_000, 3), (60_000, 4), (400_000, 8)])
def test_a_text_limits_the_model_at_any_time(text_bytes, depth):
    """200 parameters for each of 12,000, 25,500 and 158,000 tokens: 12 · 64² · depth³ of the blocks."""
    for seconds in (60, 600, 6000, 1e6):
        assert size_language_model(seconds, flops_per_second=RATE, text_bytes=text_bytes).depth <= depth
    assert size_language_model(1e6, flops_per_second=RATE, text_bytes=text_bytes).depth == depth
    assert size_language_model(1e6, flops_per_second=RATE, text_bytes=text_bytes, depth=12).depth == 12


@pytest.mark.parametrize(
    ("operations", "text_bytes", "kind", "expected", "tokens"),
    [
        # A quarter of a token for each parameter of the blocks is enough. Depth 4 has 3.146 M there and 0.524 M for the
        # vocabulary, and sees 1.032 M tokens: 0.33. At depth 5, 6.144 M and 0.655 M, it would be 0.09. 4 · √1.032 M.
        (2.5e13, MEGABYTE, "bpe", (4, 2048, 4064), 1_032_000),
        # 0.131 are enough. Depth 3, 1.327 M and 0.393 M, sees 440,400: 0.33, and 215 of each token. A 200th of them.
        (5e12, MEGABYTE, "bpe", (3, 2048, 2202), 440_400),
        # Depth 3 would see 220,200: 107 of each token, which is less than 192.
        (2.5e12, MEGABYTE, "bpe", (2, 2048, 2890), 578_000),
        # Depth 3, 1.327 M and 1.573 M, would see 762,000 of 8,192 tokens: 93 of each.
        (1.46e13, 4 * MEGABYTE, "bpe", (2, 8192, 4096), 1_534_000),
        # 0.476: depth 5, 6.144 M and 1.311 M or 2.621 M for the vocabulary.
        (2.5e14, 2_999_999, "bpe", (5, 4096, 9017), 5_081_000),
        (2.5e14, 3_000_000, "bpe", (5, 8192, 8315), 4_321_000),
        # 0.908: depth 7, 16.86 M and 0.12 M; but 18,000 tokens of 1.5 bytes allow 3.6 M: depth 4. An eighth of them.
        (2.5e15, 29_999, "bpe", (4, 320, 2250), 117_369_000),
        # At most 2,048 tokens a layer.
        (2.5e15, MEGABYTE, "char", (7, 257, 14336), 22_315_000),
    ],
)
def test_the_deepest_model_that_sees_enough_text(operations, text_bytes, kind, expected, tokens):
    size = size_language_model(100, flops_per_second=operations / 100, text_bytes=text_bytes, kind=kind)
    assert (size.depth, size.vocab_size, size.batch_tokens) == expected
    assert size.tokens == pytest.approx(tokens, rel=1e-3)


@pytest.mark.parametrize(
    ("text_bytes", "below", "above"),
    [(30_000, 320, 512), (100_000, 512, 1024), (600_000, 1024, 2048), (2_000_000, 2048, 4096), (3_000_000, 4096, 8192),
     (20_000_000, 8192, 16_384)],
)  # fmt: skip
def test_the_vocabulary_of_a_text_that_is_hardly_seen(text_bytes, below, above):
    found = [size_language_model(1, flops_per_second=1e6, text_bytes=number) for number in (text_bytes - 1, text_bytes)]
    assert [size.vocab_size for size in found] == [below, above]
    assert {(size.depth, size.batch_tokens) for size in found} == {(1, 512)}


def test_no_model_is_deeper_than_24_and_no_time_shorter_than_a_second():
    assert size_language_model(1e9, flops_per_second=1e15, text_bytes=10**9) == ModelSize(
        24, 16_384, 2048 * 24, pytest.approx(2.151e14, rel=1e-3)
    )
    assert size_language_model(-5, flops_per_second=RATE, text_bytes=MEGABYTE) == size_language_model(
        1, flops_per_second=RATE, text_bytes=MEGABYTE
    )
    assert (
        size_language_model(2, flops_per_second=RATE, text_bytes=MEGABYTE).tokens
        == 2 * size_language_model(1, flops_per_second=RATE, text_bytes=MEGABYTE).tokens
    )
    pairs = [
        size_translation_model(seconds, flops_per_second=RATE, text_bytes=MEGABYTE).tokens for seconds in (-5, 1, 2)
    ]
    assert pairs[0] == pairs[1] < pairs[2]


@pytest.mark.parametrize(
    ("text_bytes", "fraction"),
    [(0, 0.1), (5_000, 0.1), (1_000_000, 0.1), (4_000_000, 0.05), (100_000_000, 0.01), (10**10, 0.001)],
)
def test_of_a_large_text_a_smaller_fraction_is_held_out(text_bytes, fraction):
    assert choose_held_out_fraction(text_bytes) == pytest.approx(fraction)
