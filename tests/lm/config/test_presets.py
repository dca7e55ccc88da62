"""Presets are rows of values, which what is given replaces."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import BertConfig, GPT2Config, OpenAIGPTConfig

from lm.config.presets import (
    PRESETS,
    build_run_config,
    depth_preset_name,
    find_preset,
    muon_learning_rate,
    portable_name,
)
from lm.config.run_config import RunConfig, TrainingConfig
from lm.errors import UsageError
from lm.interop.families import QWEN3, differing_fields
from lm.model.cost import parameters_by_part

SHAPE = ("n_layers", "n_encoder_layers", "d_model", "n_heads", "n_kv_heads", "context_length")
"""What the first table of docs/reference/presets.md has columns for."""


def documented_rows(name: str) -> list[str]:
    """The rows of a preset in docs/reference/presets.md: its shape, and what else it sets."""
    (summary, values), model = find_preset(name), build_run_config(name).model
    layers = f"{model.n_encoder_layers}+{model.n_layers}" if model.n_encoder_layers else model.n_layers
    grouped = f" ({model.n_kv_heads} kv)" if model.n_kv_heads != model.n_heads else ""
    heads = "none" if model.is_recurrent else f"{model.n_heads}{grouped}"
    parameters = sum(parameters_by_part(model).values())
    shape = [f"{parameters:,}", layers, model.d_model, heads, f"{model.context_length:,}", summary]
    blocks = _settings({key: value for key, value in values["model"].items() if key not in SHAPE})
    training = {**{f"parallel.{key}": value for key, value in values["parallel"].items()}, **values["training"]}
    return [f"| `{name}` | {' | '.join(map(str, cells))} |" for cells in (shape, [blocks, _settings(training)])]


def _settings(values: Mapping[str, Any]) -> str:
    return ", ".join(f"`{key}={_spelt(value)}`" for key, value in values.items())


def _spelt(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


@pytest.mark.parametrize("name", [*PRESETS, "depth-4", "translation-depth-3", "portable-tiny"])
def test_the_reference_says_all_that_a_preset_sets(name):
    page = (Path(__file__).parents[3] / "docs" / "reference" / "presets.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
    assert [{*re.split(r" \| ?|, ", row)} for row in rows] == [
        {*re.split(r" \| ?|, ", row)} for row in documented_rows(name)
    ]


@pytest.mark.parametrize("name", PRESETS)
def test_the_tokenizer_of_a_preset_has_the_vocabulary_of_its_model(name):
    values = find_preset(name).values
    size = values["model"]["vocab_size"]
    assert values["tokenizer"] == ({"kind": "char"} if size == 65 else {"vocab_size": size})


@pytest.mark.parametrize(
    ("name", "theirs"), [("gpt1", OpenAIGPTConfig()), ("gpt2", GPT2Config()), ("bert-base", BertConfig())]
)
def test_published_models_are_those_of_transformers(name, theirs):
    ours = build_run_config(name).model
    values = theirs.to_dict()
    dropout, epsilon = (
        next(values[key] for key in keys if key in values)
        for keys in (("hidden_dropout_prob", "resid_pdrop"), ("layer_norm_eps", "layer_norm_epsilon"))
    )
    assert (ours.vocab_size, ours.context_length) == (theirs.vocab_size, theirs.max_position_embeddings)
    assert (ours.d_model, ours.n_layers) == (theirs.hidden_size, theirs.num_hidden_layers)
    assert ours.n_heads == theirs.num_attention_heads
    assert (ours.dropout, ours.norm_eps, ours.init_std) == (dropout, epsilon, theirs.initializer_range)


def test_the_peak_learning_rate_of_the_transformer_is_that_of_its_schedule():
    """Vaswani et al. 2017, equation 3, at the end of the warm-up."""
    config = build_run_config("transformer-base")
    peak = (config.model.d_model * config.training.warmup_steps) ** -0.5
    assert config.training.learning_rate == pytest.approx(peak, rel=0.02)


def test_another_optimizer_than_the_presets_has_a_rate_of_its_own():
    small, gpt2 = (build_run_config(name).training for name in ("small", "gpt2"))
    ours = build_run_config("small", {"training": {"optimizer": "adamw"}})
    assert ours.training.learning_rate == pytest.approx(3e-3 * 128 / ours.model.d_model)
    assert ours.training.learning_rate < 0.2 * small.learning_rate
    theirs = build_run_config("gpt2", {"training": {"optimizer": "muon"}}).training
    assert theirs.learning_rate > 10 * gpt2.learning_rate
    given = {"optimizer": "adamw", "learning_rate": 0.1}
    assert build_run_config("small", {"training": given}).training.learning_rate == 0.1


def test_what_is_given_wins_over_the_preset():
    config = build_run_config(
        "nanogpt-cpu", {"model": {"n_layers": 2}, "training": {"tokens": 500}, "tokenizer": {"kind": "bpe"}}
    )
    assert (config.model.n_layers, config.model.d_model) == (2, 128)
    assert (config.training.steps, config.training.tokens) == (None, 500)
    assert config.tokenizer.kind == "bpe"


@pytest.mark.parametrize("depth", [1, 2, 5, 12])
def test_a_depth_says_all_of_a_preset(depth):
    config, deeper = build_run_config(f"depth-{depth}"), build_run_config(f"depth-{depth + 1}")
    assert (config.model.n_layers, config.model.d_model, config.model.d_head) == (depth, 64 * depth, 64)
    assert config.training.learning_rate > deeper.training.learning_rate
    assert config.training.tokens < deeper.training.tokens
    assert config == RunConfig.from_dict(config.to_dict(), where="x")


@pytest.mark.parametrize("depth", [1, 3, 4, 5, 12])
def test_a_depth_says_all_of_a_preset_for_pairs(depth):
    config, deeper = (build_run_config(depth_preset_name(each, pairs=True)) for each in (depth, depth + 1))
    shape = config.model
    assert (shape.n_layers, shape.n_encoder_layers, shape.d_model, shape.d_ff) == (
        depth,
        depth,
        64 * depth,
        256 * depth,
    )
    assert shape.n_heads == max(4, depth)
    assert config.training.learning_rate == muon_learning_rate(64 * depth, translates=True)
    assert config.training.learning_rate > deeper.training.learning_rate
    assert config == RunConfig.from_dict(config.to_dict(), where="x")


@pytest.mark.parametrize("name", ["tiny", "gpt2", "translation", "transformer-base", "depth-3", "translation-depth-2"])
def test_a_recurrent_architecture_leaves_out_what_goes_with_blocks(name):
    config, blocks = build_run_config(name, {"model": {"architecture": "gru"}}), build_run_config(name)
    assert (config.model.n_layers, config.model.d_model) == (blocks.model.n_layers, blocks.model.d_model)
    assert config.training.optimizer == "adamw"
    if blocks.training.optimizer == "muon":
        assert config.training.learning_rate == TrainingConfig().learning_rate
    given = {"model": {"architecture": "gru"}, "training": {"learning_rate": 0.5}}
    assert build_run_config(name, given).training.learning_rate == 0.5


@pytest.mark.parametrize("name", [*(name for name in PRESETS if name != "bert-base"), "depth-2", "translation-depth-3"])
def test_decoder_only_has_the_layers_of_two(name):
    if build_run_config(name).model.is_recurrent:
        with pytest.raises(UsageError, match="decoder_only is for transformer blocks"):
            build_run_config(name, {"model": {"decoder_only": True}})
        return
    one, two = build_run_config(name, {"model": {"decoder_only": True}}), build_run_config(name)
    assert one.model.n_layers == two.model.n_layers + two.model.n_encoder_layers
    assert (one.model.n_encoder_layers, one.model.translates) == (0, True)
    assert one.training == two.training
    assert build_run_config(name, {"model": {"decoder_only": True, "n_layers": 2}}).model.n_layers == 2


@pytest.mark.parametrize("name", ["tiny", "small", "base", "depth-1", "depth-12"])
def test_a_portable_preset_differs_in_its_blocks_and_their_rate(name):
    ours, theirs = build_run_config(name), build_run_config(portable_name(name))
    assert 0 < theirs.training.learning_rate < ours.training.learning_rate
    assert replace(theirs.training, learning_rate=ours.training.learning_rate) == ours.training
    assert theirs.tokenizer == ours.tokenizer
    assert (theirs.model.d_model, theirs.model.n_layers) == (ours.model.d_model, ours.model.n_layers)
    assert not differing_fields(theirs.model, QWEN3.fields)
    assert "value_residual" in differing_fields(ours.model, QWEN3.fields)
