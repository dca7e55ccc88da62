"""Each module draws its own initial values, in the same order and from the same distributions in every version.

`initial_draws.json` holds, by model, a checksum of the draws. They are recorded on torch's meta device, and depend on
no processor; `python -m tests.lm.model.test_initialisation` writes it, for draws that are to change.
"""

import hashlib
import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from lm.config.model import ModelConfig
from lm.config.presets import PRESETS, build_run_config, portable_name
from lm.model.transformer import build_model

DRAWS = Path(__file__).with_name("initial_draws.json")
SIZES = {"vocab_size": 37, "context_length": 24, "d_model": 32, "n_layers": 2, "n_heads": 4}
RECURRENT = {
    f"{architecture}, {score} attention": {
        "architecture": architecture,
        "n_encoder_layers": 2,
        "recurrent_attention": score,
    }
    for architecture in ("lstm", "gru")
    for score in ("none", "dot", "general", "additive")
}
VARIANTS = {
    "GPT": {},
    "encoder-decoder": {"n_encoder_layers": 3, "source_vocab_size": 29},
    "zeros": {"zero_init": True, "tie_embeddings": False},
    "scaled embeddings": {
        "scale_embeddings": True, "n_encoder_layers": 1, "bias": True, "positions": "sinusoidal", "norm": "layernorm",
    },
    "learned positions": {"positions": "learned", "bias": True, "activation": "gelu-tanh"},
    "t5": {"positions": "t5", "n_encoder_layers": 2},
    "relative": {"positions": "relative", "n_encoder_layers": 2, "n_kv_heads": 2},
    "shares": {"positions": "alibi", "qk_norm": True, "value_residual": True},
    "window": {"attention": "window", "attention_window": 5},
    "linformer": {"attention": "linformer", "n_encoder_layers": 2, "value_residual": True},
    "compressed": {"attention": "compressed", "bias": True, "positions": "relative"},
    "experts": {"experts": 3, "experts_per_token": 2, "gate_noise": 1.0, "expert_every": 2, "zero_init": True},
    "masked": {
        "objective": "masked", "embedding_norm": True, "token_types": 2, "output_transform": True,
        "positions": "learned", "norm": "layernorm", "bias": True, "tie_embeddings": False,
    },
    "classifier": {"objective": "masked", "labels": ("a", "b", "c"), "token_types": 2},
    "output bias": {"output_bias": True, "n_encoder_layers": 1},
    "syntax": {"n_encoder_layers": 2, "syntax": "both", "positions": "relative", "n_kv_heads": 2},
    "recurrent": {"architecture": "lstm"},
    **RECURRENT,
}  # fmt: skip
MODELS = {name: ModelConfig(**SIZES, **fields) for name, fields in VARIANTS.items()} | {
    name: build_run_config(name).model for name in [*PRESETS, "depth-2", "translation-depth-2", "portable-tiny"]
}


class Recorded(TorchFunctionMode):
    """Notes what is drawn, by which distribution and into which shape, instead of drawing it."""

    def __init__(self):
        super().__init__()
        self.draws = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        given = kwargs or {}
        if getattr(func, "__module__", None) != torch.nn.init.__name__:
            return func(*args, **given)
        tensor = args[0] if args else given["tensor"]
        if func.__name__ != "constant_":
            settings = sorted((key, value) for key, value in given.items() if key not in {"tensor", "generator"})
            self.draws.append((func.__name__, tuple(tensor.shape), args[1:], settings))
        return tensor


def checksum(config):
    with torch.device("meta"), Recorded() as recorded:
        build_model(config)
    return hashlib.sha256(repr(recorded.draws).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", MODELS)
def test_the_draws_are_those_of_earlier_versions(name):
    assert checksum(MODELS[name]) == json.loads(DRAWS.read_text())[name]


@pytest.mark.parametrize("name", ["tiny", "small", "depth-2"])
def test_the_first_prediction_of_a_portable_model_is_uniform(name):
    """Tied to the embedding, its output layer would predict the token that it reads, at 10.9 nats in `small`."""
    config = build_run_config(portable_name(name)).model
    model = build_model(config).eval()
    tokens = torch.randint(config.vocab_size, (2, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(config.vocab_size), abs=1e-5)


if __name__ == "__main__":
    DRAWS.write_text(json.dumps({name: checksum(config) for name, config in MODELS.items()}, indent=1) + "\n")
