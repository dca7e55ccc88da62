"""What a model is in llama.cpp, its settings there, and what it cannot be."""

import pytest

from lm.config.model import ModelConfig
from lm.errors import UsageError
from lm.interop.gguf.architectures import build_metadata, find_architecture
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
    [({"value_residual": True}, "value_residual True"),
     ({"qk_norm": True, "attention": "window"}, "attention window, without which this would be qwen3"),
     ({"rope_scaling": "yarn", "rope_fast": 8.0}, "rope_fast 8.0"),
     ({**GPT, "activation": "relu"}, "activation relu, without which this would be gpt2"),
     ({"n_encoder_layers": 1}, "n_encoder_layers 1"), ({"architecture": "lstm"}, "architecture lstm")],
)  # fmt: skip
def test_what_llama_cpp_does_not_have_is_named(fields, named):
    with pytest.raises(UsageError, match=f"llama.cpp has no model with .*{named}"):
        find_architecture(ModelConfig(**fields))
