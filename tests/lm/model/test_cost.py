"""What models cost: the published sizes, and arithmetic counted by hand."""

import pytest
import torch

from lm.config.model import ModelConfig
from lm.config.presets import build_run_config
from lm.config.run_config import LoraConfig
from lm.model import build_model
from lm.model.cost import (
    active_parameters,
    cache_bytes_per_token,
    parameters_by_part,
    training_flops,
    training_flops_per_token,
)

PUBLISHED = {
    "gpt1": 116_534_784, "gpt2": 124_439_808, "llama-15m": 15_191_712,
    # 5 post-norm layers of 512 with biases; of two the keys and the values go through convolutions of width 3
    "t-dmca": 512 * 32_000 + 5 * (4 * 512 * 513 + 2 * 512 * 2048 + 2560 + 4 * 512) + 2 * 2 * (3 * 512 * 512 + 512),
    "transformer-base": 44_138_496 + 512 * 37_000,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts_are_the_published_ones(name):
    assert sum(parameters_by_part(build_run_config(name).model).values()) == PUBLISHED[name]


def test_flops_of_an_encoder_decoder_by_hand():
    """3 sources of 7 and targets of 5: queries and outputs of cross-attention on the target, keys and values not."""
    layer, d_ff = 512 * 512, 2 * 512 * 2048
    of_source = 7 * 6 * (4 * layer + d_ff) + 7 * 6 * 2 * layer + 6 * 2 * 512 * 7 * 7
    of_target = 5 * (6 * (4 * layer + 2 * layer + d_ff) + 37000 * 512) + 6 * 512 * (5 * 5 + 2 * 5 * 7)
    flops = training_flops(build_run_config("transformer-base").model, rows=3, length=5, source_length=7)
    assert flops == 6 * 3 * (of_source + of_target)


def test_switch_base_by_hand():
    """Google's switch-base-8: 36 attentions, 12 dense feed-forward layers, 12 of 8 experts with gates, T5's biases."""
    attention, feed_forward, gate = 4 * 768 * 768, 2 * 768 * 3072, 8 * 768
    norms = (12 * 2 + 12 * 3 + 2) * 768
    dense = 2 * 32 * 12 + 32128 * 768 + 36 * attention + 12 * feed_forward + 12 * gate + norms
    config = build_run_config("switch-base").model
    assert sum(parameters_by_part(config).values()) == dense + 12 * 8 * feed_forward == 619_339_008
    assert active_parameters(config) == dense + 12 * feed_forward


@pytest.mark.parametrize(
    ("fields", "pairs"),
    [
        ({}, [32, 32]),
        ({"attention": "window", "attention_window": 16}, [32, 32]),
        ({"attention": "bigbird", "attention_block": 2, "global_blocks": 0, "random_blocks": 0}, [20, 20]),
        ({"attention": "compressed", "attention_block": 2, "attention_stride": 4}, [8, 8]),
    ],
)
def test_pairs_within_a_pattern_by_hand(fields, pairs):
    """Of 8 positions: half of 64; of 4 blocks each with itself by half and 3 neighbours; half of what 2 keys give."""
    config, full = ModelConfig(n_layers=2, **fields), ModelConfig(n_layers=2)
    convolutions = 2 * 8 * 256**2 * (fields.get("attention") == "compressed")
    counted = training_flops(config, rows=1, length=8) - training_flops(full, rows=1, length=8)
    assert counted == 6 * (2 * 256 * (sum(pairs) - 64) + convolutions)


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_cache_bytes_are_those_of_its_tensors(kv_heads):
    config = ModelConfig(vocab_size=9, d_model=16, n_layers=3, n_heads=4, n_kv_heads=kv_heads)
    model = build_model(config).eval()
    cache = model.new_cache()
    model.hidden(torch.zeros(2, 5, dtype=torch.long), cache=cache)
    held = sum(tensor.nbytes for layer in cache.self_attention for tensor in layer.keys_and_values())
    assert held == 2 * 5 * cache_bytes_per_token(config)


def test_parameters_and_flops_of_seq2seq_by_hand():
    """GRUs of 1000: three gates of 1000 over embedding and state, with two biases; two directions of 500 beside it."""
    config = build_run_config("seq2seq").model
    encoder, decoder = 2 * 3 * 500 * (1000 + 500), 3 * 1000 * (1000 + 1000)
    keys, target = 1000 * 1000, 1000 * 1000 + 1000 + 1000 * 2000
    biases = 2 * 3 * 500 * 2 + 3 * 1000 * 2
    start, attention = 1000 * 1000 + 1000, keys + target + 1000 + 1000
    parts = parameters_by_part(config)
    assert parts["token embeddings"] == 30_000 * 1000
    assert parts["recurrent layers"] == encoder + decoder + biases + start
    assert parts["cross-attention"] == attention
    assert sum(parts.values()) == 30_000_000 + encoder + decoder + biases + start + attention == 45_516_000
    of_target = 5 * (decoder + target + 30_000 * 1000) + 1000 * 2 * 5 * 7
    assert training_flops(config, rows=3, length=5, source_length=7) == 6 * 3 * (of_target + 7 * (encoder + keys))
    assert cache_bytes_per_token(config) == 0


def test_flops_of_adapters_by_hand():
    """What is frozen counts two of three passes; adapters, of queries, keys and values three, count all."""
    shape = {"n_layers": 2, "d_model": 32, "d_ff": 64, "activation": "gelu", "vocab_size": 50, "context_length": 8}
    config, lora = ModelConfig(**shape), LoraConfig(rank=4)
    frozen = 2 * (4 * 32 * 32 + 2 * 32 * 64) + 50 * 32
    trained = 2 * 4 * (3 * 2 * 32 + 2 * 32 + 2 * (32 + 64))
    expected = 4 * frozen + 6 * trained + 6 * 2 * 32 * 8
    assert training_flops_per_token(config, lora=lora) == pytest.approx(expected)
    assert parameters_by_part(config, lora)["adapters"] == trained
    assert sum(parameters_by_part(config, lora).values()) == sum(parameters_by_part(config).values()) + trained
