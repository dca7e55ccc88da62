"""What a model is in llama.cpp, its settings there, and what it cannot be."""

import math

import pytest
import torch

from lm.config.model import ModelConfig
from lm.errors import UsageError
from lm.interop.gguf.architectures import build_metadata, find_architecture
from lm.interop.gguf.exporting import name_tensors
from lm.model.transformer import build_model
from tests.lm.interop.gguf.models import PLAIN

GPT = {"norm": "layernorm", "positions": "learned", "activation": "gelu"}


@pytest.mark.parametrize("architecture", PLAIN)
def test_the_blocks_decide(architecture):
    config = ModelConfig(**PLAIN[architecture])
    found = find_architecture(config)
    assert found.architecture == architecture
    told = build_metadata(config, found)
    assert told[f"{architecture}.attention.head_count_kv"] == config.n_kv_heads
    assert told[f"{architecture}.feed_forward_length"] == config.d_ff
    assert (f"{architecture}.rope.freq_base" in told) is (architecture != "gpt2")


@pytest.mark.parametrize(
    ("fields", "named"),
    [({"value_residual": True}, "value_residual True"), ({"positions": "alibi"}, "positions alibi"),
     ({"attention": "window"}, "attention window, without which this would be llama"),
     ({"qk_norm": True, "attention": "window"}, "attention window, without which this would be qwen3"),
     ({"qk_norm": True, "attention_bias": "all"}, "qk_norm True, without which this would be llama"),
     ({"qk_norm": True, "rope_scaling": "llama3"}, "qk_norm True, without which this would be llama"),
     ({"rope_scaling": "yarn", "rope_fast": 8.0}, "rope_fast 8.0"),
     ({"rope_scaling": "yarn", "rope_slow": 2.0}, "rope_slow 2.0"),
     ({**GPT, "activation": "relu"}, "activation relu, without which this would be gpt2"),
     ({**GPT, "activation": "relu2"}, "activation relu2"), ({**GPT, "qk_norm": True}, "qk_norm True"),
     ({"softcap": 30.0}, "softcap 30.0"), ({"experts": 2}, "experts 2"), ({"objective": "masked"}, "objective masked"),
     ({"decoder_only": True}, "decoder_only True"), ({"n_encoder_layers": 1}, "n_encoder_layers 1"),
     ({"architecture": "lstm"}, "architecture lstm"), ({"norm_position": "post"}, "norm_position post")],
)  # fmt: skip
def test_what_llama_cpp_does_not_have_is_named(fields, named):
    with pytest.raises(UsageError, match=f"llama.cpp has no model with .*{named}"):
        find_architecture(ModelConfig(**fields))


def test_yarn_keeps_its_temperature():
    """llama.cpp multiplies by 1 + 0.1 ln(factor) itself."""
    config = ModelConfig(rope_scaling="yarn", rope_factor=4.0, rope_context=64, rope_temperature=1.5)
    told = build_metadata(config, find_architecture(config))
    assert told["llama.rope.scaling.type"] == "yarn"
    assert told["llama.rope.scaling.original_context_length"] == 64
    assert told["llama.rope.scaling.attn_factor"] * (1 + 0.1 * math.log(4)) == pytest.approx(1.5)


def test_llama_3_s_scaling_is_a_factor_for_each_frequency():
    """As llama.cpp's own conversion computes them."""
    factor, slow, fast, context = 8.0, 1.0, 4.0, 32
    config = ModelConfig(
        d_model=64, n_heads=2, rope_scaling="llama3", rope_factor=factor, rope_context=context, rope_base=100.0
    )
    tensors = dict(name_tensors(build_model(config).state_dict(), config, find_architecture(config)))
    expected = []
    for index in range(0, 32, 2):
        wavelength = 2 * math.pi * 100 ** (index / 32)
        smooth = min(1.0, max(0.0, (context / wavelength - slow) / (fast - slow)))
        expected.append(1 / ((1 - smooth) / factor + smooth))
    torch.testing.assert_close(tensors["rope_freqs.weight"], torch.tensor(expected))
    assert min(expected) < max(expected)


def test_the_features_of_llama_that_turn_together_stand_together():
    config = ModelConfig(**{**PLAIN["llama"], "d_head": 6})
    weights = build_model(config).state_dict()
    ours = weights["decoder.blocks.0.attention.input.weight"]
    theirs = dict(name_tensors(weights, config, find_architecture(config)))
    heads = 4
    for head in range(heads):
        for feature in range(6):
            row = 6 * head + (2 * feature if feature < 3 else 2 * (feature - 3) + 1)
            torch.testing.assert_close(theirs["blk.0.attn_q.weight"][row], ours[6 * head + feature])
    torch.testing.assert_close(theirs["blk.0.attn_v.weight"], ours[-2 * 6 :])
