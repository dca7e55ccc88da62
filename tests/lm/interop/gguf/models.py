"""Runs of each architecture of llama.cpp, with random numbers everywhere."""

import itertools
from pathlib import Path

from lm.config.model import ModelConfig
from lm.errors import UsageError
from lm.interop.gguf import find_architecture
from tests.lm.interop.hugging_face import models

FAMILIES = {"gpt2": "gpt2", "gptneox": "gpt_neox", "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""llama.cpp's architectures, and what transformers calls them."""
_SHAPE = {"vocab_size": models.VOCABULARY + 20, "context_length": 48, "d_model": 64, "n_layers": 2, "n_heads": 4}
_GATED = {**_SHAPE, "n_kv_heads": 2, "rope_base": 500.0}
PLAIN = {
    "gpt2": {
        **_SHAPE, "context_length": 1024, "norm": "layernorm", "positions": "learned", "activation": "gelu-tanh",
        "bias": True,
    },
    "gptneox": {**_SHAPE, "norm": "layernorm", "activation": "gelu-tanh", "rotary_fraction": 0.5},
    "llama": {**_GATED, "d_head": 32, "tie_embeddings": False},
    "qwen2": {**_GATED, "attention_bias": "inputs"},
    "qwen3": {**_GATED, "d_head": 128, "qk_norm": True},
}  # fmt: skip
"""A model of each, without scaled positions; contexts and heads are as transformers has them whatever a file says."""


def plain_run(folder: Path, architecture: str) -> Path:
    return models.random_run(folder, ModelConfig(**PLAIN[architecture]))


def random_config(architecture: str, seed: int) -> ModelConfig:
    """A small model of an architecture; every field that it has varies, but for the formula of GELU."""
    for number in itertools.count(1000 * seed):
        config = models.random_config(FAMILIES[architecture], number)
        if _is_of(config, architecture) and config.activation != "gelu":
            return config
    raise AssertionError


def _is_of(config: ModelConfig, architecture: str) -> bool:
    try:
        return find_architecture(config).architecture == architecture
    except UsageError:
        return False
