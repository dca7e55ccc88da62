"""Shapes of models, and those that there cannot be."""

import dataclasses

import pytest

from lm.config.model import ModelConfig
from lm.errors import UsageError


@pytest.mark.parametrize(("activation", "width"), [("gelu", 4 * 96), ("swiglu", 256)])
def test_feed_forward_width_follows_the_model(activation, width):
    config = ModelConfig(d_model=96, activation=activation)
    assert config.d_ff == width
    assert dataclasses.replace(config, d_ff=50).d_ff == 50


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"d_model": 100, "n_heads": 3}, "n_heads 3 does not divide d_model 100"),
        ({"n_heads": 4, "n_kv_heads": 3}, "n_kv_heads 3 does not divide n_heads 4"),
        ({"d_model": 12, "n_heads": 4}, "not 3"),
        ({"d_head": 7}, "rotary_fraction, not 7"),
        ({"rotary_fraction": 0.01}, "rotary_fraction, not 0"),
        ({"parallel_residual": True, "norm_position": "post"}, "parallel_residual is for decoder-only models"),
        ({"parallel_residual": True, "n_encoder_layers": 2}, "parallel_residual is for decoder-only models"),
        ({"architecture": "lstm", "d_ff": 9}, "d_ff is for transformer blocks"),
        ({"architecture": "lstm", "decoder_only": True}, "decoder_only is for transformer blocks"),
        ({"decoder_only": True, "n_encoder_layers": 1}, "has no n_encoder_layers"),
    ],
)
def test_a_shape_that_no_model_has_is_refused(values, message):
    with pytest.raises(UsageError, match=message):
        ModelConfig(**values)


def test_every_so_many_blocks_have_experts_from_the_last_of_the_first_of_them():
    sparse = ModelConfig(n_layers=6, experts=2, expert_every=2)
    assert [layer for layer in range(6) if sparse.has_experts(layer)] == [1, 3, 5]
    assert all(ModelConfig(experts=2).has_experts(layer) for layer in range(4))
    assert not any(ModelConfig().has_experts(layer) for layer in range(4))


def test_recurrent_layers_need_no_heads_that_divide_their_width():
    config = ModelConfig(architecture="lstm", d_model=9, positions="none")
    assert config.is_recurrent
    assert config.position_limit is None
    assert ModelConfig(architecture="lstm", n_encoder_layers=1).recurrent_attention == "additive"


LEFT_OPEN = [
    {},
    {"d_model": 96, "n_heads": 6, "activation": "gelu", "bias": True, "dropout": 0.1},
    {"d_model": 30, "n_heads": 4, "d_head": 7, "positions": "learned"},
    {"d_ff": 50, "n_kv_heads": 2, "init_std": 0.1, "attention_bias": "inputs"},
    {"attention": "bigbird", "global_blocks": 1},
    {"architecture": "gru", "n_encoder_layers": 2},
    {"architecture": "lstm", "n_encoder_layers": 2, "recurrent_attention": "dot"},
]


@pytest.mark.parametrize("given", LEFT_OPEN, ids=str)
def test_what_is_left_open_has_a_value_and_is_left_open_again_for_a_changed_model(given):
    config = ModelConfig(**given)
    assert None not in {getattr(config, name) for name in ("init_std", *given)}
    settings = config.settings()
    assert {name: value for name, value in settings.items() if name in given} == given
    assert ModelConfig(**settings) == config
    if "n_heads" not in given and not config.is_recurrent:
        wider = ModelConfig(**{**settings, "d_model": 512})
        assert wider == ModelConfig(**{**given, "d_model": 512})
