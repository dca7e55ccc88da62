"""Shapes of models, and those that there cannot be."""

import dataclasses
import math

import pytest
from lm.config.options import list_options

from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
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
        ({"d_model": 12, "n_heads": 4}, "even head size, not 3"),
        ({"d_head": 7}, "even number of a head.s dimensions, not 7 of 7"),
        ({"rotary_fraction": 0.01}, "even number of a head.s dimensions, not 0 of 64"),
        ({"rope_scaling": "llama3", "rope_slow": 9.0}, "rope_slow 9.0 is not below rope_fast 4.0"),
        ({"rope_scaling": "llama3", "rope_slow": 4.0, "rope_fast": 2.0}, "rope_slow 4.0 is not below rope_fast 2.0"),
        ({"parallel_residual": True, "norm_position": "post"}, "parallel_residual is for decoder-only models"),
        ({"parallel_residual": True, "n_encoder_layers": 2}, "parallel_residual is for decoder-only models"),
        ({"d_model": 15, "n_heads": 3, "positions": "sinusoidal"}, "even d_model, not 15"),
        ({"source_vocab_size": 9}, "needs an encoder"),
        ({"experts": 2, "experts_per_token": 3}, "experts_per_token 3 is more than experts 2"),
        ({"experts": 2, "expert_every": 5, "n_encoder_layers": 4}, "expert_every 5 is more than there are layers"),
        ({"architecture": "lstm", "d_ff": 9}, "d_ff is for transformer blocks"),
        ({"architecture": "lstm", "decoder_only": True}, "decoder_only is for transformer blocks"),
        ({"decoder_only": True, "n_encoder_layers": 1}, "a decoder-only model has no encoder"),
        ({"decoder_only": True, "source_vocab_size": 9}, "share one vocabulary"),
        ({"architecture": "gru", "n_encoder_layers": 1, "d_model": 9}, "even d_model, not 9"),
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


FOLLOWING = [
    ({"dropout": 0.1}, "attention_dropout", 0.1, {"dropout": 0.3}, 0.3),
    ({"dropout": 0.1, "attention_dropout": 0.1}, "attention_dropout", 0.1, {"dropout": 0.3}, 0.1),
    ({"positions": "relative"}, "max_distance", 16, {"positions": "t5"}, 128),
    ({"positions": "t5", "max_distance": 40}, "max_distance", 40, {"positions": "relative"}, 40),
    ({"n_encoder_layers": 1, "syntax": "both"}, "max_tree_distance", 16, {"max_distance": 4}, 4),
    ({"n_encoder_layers": 1, "syntax": "both", "positions": "t5"}, "max_tree_distance", 16, {"positions": "none"}, 16),
    ({"rope_scaling": "linear"}, "rope_factor", 1.0, {"rope_factor": 2.0}, 2.0),
    ({"rope_scaling": "llama3"}, "rope_context", 256, {"context_length": 64}, 64),
    ({"rope_scaling": "llama3", "rope_context": 256}, "rope_context", 256, {"context_length": 64}, 256),
    ({"rope_scaling": "llama3"}, "rope_fast", 4.0, {"rope_scaling": "yarn"}, 32.0),
    ({"rope_scaling": "yarn", "rope_factor": math.e}, "rope_temperature", 1.1, {"rope_factor": 1.0}, 1.0),
]


@pytest.mark.parametrize(("given", "name", "value", "changes", "then"), FOLLOWING, ids=str)
def test_a_field_that_follows_from_others_follows_when_they_change_and_one_that_was_given_stays(
    given, name, value, changes, then
):
    config = ModelConfig(**given)
    assert getattr(config, name) == pytest.approx(value)
    assert getattr(config.replace(**changes), name) == pytest.approx(then)
    assert config.settings()[name] == given.get(name)


def documented_default(name: str, kind: str) -> float:
    """A default as the help of a setting says it, as "32; compressed 256"."""
    (text,) = [option.default_text for option in list_options(ModelConfig) if option.name == name]
    usual, *others = text.split("; ")
    return float(dict(other.split() for other in others).get(kind, usual))


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"attention": "window"}, ["attention_window"]),
        ({"attention": "bigbird"}, ["attention_block", "global_blocks", "random_blocks"]),
        ({"attention": "linformer", "objective": "masked", "positions": "learned"}, ["attention_rank"]),
        ({"attention": "compressed"}, ["attention_block", "attention_stride"]),
        ({"positions": "relative"}, ["max_distance"]),
        ({"positions": "t5"}, ["max_distance"]),
        ({"rope_scaling": "yarn"}, ["rope_factor", "rope_slow", "rope_fast"]),
        ({"rope_scaling": "llama3"}, ["rope_factor", "rope_slow", "rope_fast"]),
    ],
)
def test_what_is_left_open_has_the_default_that_the_help_says(given, names):
    config = ModelConfig(**given)
    (kind, *_) = given.values()
    assert {name: getattr(config, name) for name in names} == {name: documented_default(name, kind) for name in names}


def test_initial_weights_are_smaller_in_wider_models():
    assert ModelConfig(d_model=768).init_std == pytest.approx(0.02)
    assert ModelConfig(d_model=192).init_std == pytest.approx(0.04)


@pytest.mark.parametrize(("d_model", "d_ff"), [(12, 32), (16, 64), (24, 64), (36, 96), (40, 128), (288, 768)])
def test_a_gated_feed_forward_layer_has_eight_thirds_of_the_width_rounded_up_to_a_multiple_of_32(d_model, d_ff):
    assert ModelConfig(d_model=d_model, n_heads=2).d_ff == d_ff == 32 * math.ceil(8 * d_model / 3 / 32)


def test_half_of_the_buckets_of_t5_are_for_single_distances():
    """Raffel et al. 2020: 32 buckets, of which 16 of the exact distances; longer ones need a farther limit."""
    assert ModelConfig(positions="t5", max_distance=17).max_distance == 17
    with pytest.raises(UsageError, match="max_distance over 16, not 16"):
        ModelConfig(positions="t5", max_distance=16)


def test_a_model_has_none_of_what_is_not_its_own():
    assert {ModelConfig().rope_factor, ModelConfig().max_distance, ModelConfig().max_tree_distance} == {None}
    assert ModelConfig().recurrent_attention is None
    assert ModelConfig().attention_window is None
    assert ModelConfig(architecture="lstm").d_ff is None


@pytest.mark.parametrize("given", LEFT_OPEN, ids=str)
@pytest.mark.parametrize("was", ["null", "absent", "a value"])
def test_a_run_written_with_fields_left_open_is_loaded(given, was):
    """A value that follows from others is one like any other."""
    config = RunConfig(model=ModelConfig(**given))
    values = config.to_dict()
    if was == "absent":
        values["model"] = {name: value for name, value in values["model"].items() if value is not None}
    elif was == "a value":
        values["model"] = dataclasses.asdict(config.model)
    assert RunConfig.from_dict(values, where="config.json") == config
