"""Initial weights: the published distributions, the same for the same seed, whatever else a model has."""

import math

import pytest
import torch
import torch.nn.functional as F

from lm.config.model import ModelConfig
from lm.config.presets import build_run_config, portable_name
from lm.model import build_model

SIZES = {"vocab_size": 500, "context_length": 64, "d_model": 64, "n_layers": 3, "n_heads": 4, "init_std": 0.05}
STDS = {
    "tokens.weight": 0.05, "positions.weight": 0.05, "input.weight": 0.05, "up.weight": 0.05, "head.weight": 0.05,
    "output.weight": 0.05 / 6**0.5, "down.weight": 0.05 / 6**0.5, "_lengthwise": 1 / 8, "gate.score.weight": 0.05,
    ".keys": 0.05, ".values": 0.05, "biases": 0.05, "weight_ih_l0": 0.05, "weight_hh_l0": 0.05,
}  # fmt: skip
ZEROS = {"output.weight", "down.weight", "head.weight"}


@pytest.mark.parametrize("zero_init", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {"positions": "learned", "tie_embeddings": False, "bias": True, "norm": "layernorm"},
        {"positions": "relative", "n_encoder_layers": 3},
        {"positions": "t5", "experts": 4, "qk_norm": True},
        {"objective": "masked", "attention": "linformer"},
    ],
)
def test_matrices_are_drawn_and_vectors_are_constant(fields, zero_init):
    for name, weight in build_model(ModelConfig(**SIZES, zero_init=zero_init, **fields)).named_parameters():
        if weight.ndim == 1:
            assert (weight == (0.0 if name.endswith("bias") else 1.0)).all()
            continue
        end = next(end for end in STDS if name.endswith(end))
        std = 0.0 if zero_init and end in ZEROS else STDS[end]
        assert weight.std().item() == pytest.approx(std, rel=5 / weight.numel() ** 0.5), name


def test_matrices_depend_on_the_seed_and_not_on_the_vectors():
    state = torch.random.get_rng_state()
    models = [
        build_model(ModelConfig(**SIZES, **fields), seed=3)
        for fields in ({}, {"qk_norm": True, "value_residual": True})
    ]
    plain, other = (model.state_dict() for model in models)
    assert all(torch.equal(weight, other[name]) for name, weight in plain.items())
    assert not torch.equal(build_model(ModelConfig(**SIZES), seed=4).output.weight, models[0].output.weight)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("name", ["tiny", "small"])
def test_the_first_prediction_of_a_portable_model_is_uniform(name):
    """Tied to the embedding, its output layer would predict the token that it reads, at 10.9 nats in `small`."""
    config = build_run_config(portable_name(name)).model
    model = build_model(config).eval()
    tokens = torch.randint(config.vocab_size, (2, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(config.vocab_size), abs=1e-5)
