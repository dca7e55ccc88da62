"""Configs describe and check themselves; presets are rows of them."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from lm.config import options
from lm.config.data import DataConfig
from lm.config.decoding import BeamConfig, SamplingConfig, TranslationConfig
from lm.config.evaluation import AttentionConfig, PerplexityConfig, ScoringConfig
from lm.config.model import ModelConfig
from lm.config.presets import PRESETS, named_by_depth, preset, read_toml, resolve
from lm.config.run import SECTIONS, Plan, RunConfig
from lm.config.training import TrainingConfig
from lm.errors import InputError, UsageError

PLAN = {"device": "cpu", "dtype": "float32", "threads": 1, "steps": 9, "data": "tokens", "data_key": "k"}


@pytest.mark.parametrize("config", SECTIONS.values())
def test_every_field_of_every_section_is_described(config):
    names = {field.name for field in dataclasses.fields(config)}
    described = {option.name for option in options.options(config)}
    assert names - described == ({"vocab_size", "source_vocab_size"} if config is ModelConfig else set())
    assert all(option.help.endswith((".", "]")) for option in options.options(config))


def test_no_two_sections_share_a_flag():
    flags = [option.flag for config in SECTIONS.values() for option in options.options(config)]
    assert len(flags) == len(set(flags))


@pytest.mark.parametrize(
    ("config", "values", "message"),
    [
        (ModelConfig, {"d_model": -4}, r"d_model must be at least 1, not -4 \(--d-model\)"),
        (ModelConfig, {"d_model": 2.5}, "d_model must be a whole number, not 2.5"),
        (ModelConfig, {"n_layers": True}, "n_layers must be a whole number, not True"),
        (ModelConfig, {"d_model": 100, "n_heads": 3}, "n_heads 3 does not divide d_model 100"),
        (ModelConfig, {"n_heads": 4, "n_kv_heads": 3}, "n_kv_heads 3 does not divide n_heads 4"),
        (ModelConfig, {"d_model": 12, "n_heads": 4}, "even head size, not 3"),
        (ModelConfig, {"d_model": 15, "n_heads": 3, "positions": "sinusoidal"}, "even d_model, not 15"),
        (ModelConfig, {"positions": "rotory"}, r"did you mean 'rotary'\?"),
        (ModelConfig, {"dropout": 1.5}, "dropout must be at most 0.99, not 1.5"),
        (ModelConfig, {"source_vocab_size": 9}, "needs an encoder"),
        (TrainingConfig, {"steps": 5, "epochs": 1.0}, "only one of --steps, --epochs"),
        (TrainingConfig, {"learning_rate": float("nan")}, "learning_rate must be a finite number, not nan"),
        (TrainingConfig, {"batch_size": 0}, "batch_size must be at least 1, not 0"),
        (TrainingConfig, {"seed": 2**64}, "seed must be at most 18446744073709551615, not 18446744073709551616"),
        (DataConfig, {"validation": 3}, "validation must be a word"),
    ],
)
def test_a_wrong_value_is_named(config, values, message):
    with pytest.raises(UsageError, match=message):
        config(**values)


CONFIGS = (*SECTIONS.values(), SamplingConfig, BeamConfig, TranslationConfig, PerplexityConfig, ScoringConfig,
           AttentionConfig)  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS)
def test_numbers_are_finite_and_texts_are_utf8(config):
    for described in options.options(config):
        if described.kind is float:
            for value in (float("inf"), float("-inf"), float("nan"), 10**400):
                with pytest.raises(UsageError, match=rf"{described.name} must be a finite number.*{described.flag}"):
                    described.check(value)
        elif described.kind in (str, tuple) and not described.choices and described.name != "validation":
            with pytest.raises(UsageError, match=rf"{described.name} is not valid UTF-8: .*{described.flag}"):
                described.check("caf\udce9" if described.kind is str else ["one", "caf\udce9"])


def test_a_held_out_file_may_have_any_name():
    assert DataConfig(validation="caf\udce9.txt").validation == "caf\udce9.txt"


def test_unknown_keys_suggest_the_nearest():
    with pytest.raises(UsageError, match=r"my.toml: unknown key 'learning_rte' \(did you mean 'learning_rate'\?\)"):
        options.build(TrainingConfig, {"learning_rte": 1}, where="my.toml")


def test_unknown_presets_suggest_the_nearest():
    with pytest.raises(UsageError, match=r"no preset 'gpt-2' \(did you mean 'gpt2'\?\)"):
        preset("gpt-2")


@pytest.mark.parametrize("name", PRESETS)
def test_a_run_config_survives_json(name):
    config = dataclasses.replace(resolve(name), plan=Plan("cpu", "float32", 2, 10, "data", "key"))
    assert RunConfig.from_dict(json.loads(json.dumps(config.to_dict())), where="config.json") == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"training": []}, "config.json, training: must be names with values, not []"),
        ({"model": 3}, "config.json, model: must be names with values, not 3"),
        ({"model": {"vocab_size": "many"}}, "config.json, model: vocab_size must be a whole number, not 'many'"),
        ({"plan": []}, "config.json, plan: must be names with values, not []"),
        ({"plan": {**PLAN, "steps": None}}, "config.json, plan: steps must be a whole number, not None"),
        ({"plan": {**PLAN, "steps": True}}, "config.json, plan: steps must be a whole number, not True"),
        ({"plan": {**PLAN, "deadline": "soon"}}, "plan: deadline must be a number or nothing, not 'soon'"),
    ],
)
def test_settings_of_another_kind_are_named(change, message):
    values = {**RunConfig().to_dict(), **change}
    with pytest.raises(UsageError, match=re.escape(message)):
        RunConfig.from_dict(values, where="config.json")
    with pytest.raises(UsageError, match="config.json: must be names with values, not 7"):
        RunConfig.from_dict(7, where="config.json")


def test_a_whole_number_is_a_number_too():
    values = {**RunConfig().to_dict(), "plan": {**PLAN, "deadline": 60}}
    assert RunConfig.from_dict(values, where="config.json").plan.deadline == 60


def test_another_format_version_is_refused():
    with pytest.raises(UsageError, match="config.json: format version 999"):
        RunConfig.from_dict({**RunConfig().to_dict(), "format_version": 999}, where="config.json")


def test_what_is_given_wins_over_the_preset():
    config = resolve(
        "nanogpt-cpu", {"model": {"n_layers": 2}, "training": {"tokens": 500}, "tokenizer": {"kind": "bpe"}}
    )
    assert (config.model.n_layers, config.model.d_model) == (2, 128)
    assert (config.training.steps, config.training.tokens) == (None, 500)
    assert config.tokenizer.kind == "bpe"


def test_a_batch_in_sequences_replaces_one_in_tokens():
    config = resolve("transformer-base", {"training": {"batch_size": 7}})
    assert (config.training.batch_size, config.training.batch_tokens) == (7, None)


@pytest.mark.parametrize(("activation", "width"), [("gelu", 4 * 96), ("swiglu", 256)])
def test_feed_forward_width_follows_the_model(activation, width):
    config = ModelConfig(d_model=96, activation=activation)
    assert config.feed_forward_width == width
    assert dataclasses.replace(config, d_ff=50).feed_forward_width == 50


def test_a_toml_file_is_read_by_section(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('preset = "small"\n[model]\nd_model = 96\n[training]\nsample = ["Once"]\nlearning_rate = 1\n')
    name, given = read_toml(path)
    config = resolve(name, given)
    assert (config.preset, config.model.d_model, config.model.n_layers) == ("small", 96, 6)
    assert config.training.sample == ("Once",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[modle]\n", r"run.toml: unknown table 'modle' \(did you mean 'model'\?\)"),
        ("steps = 3\n", r"run.toml: unknown key 'steps' \(put it under \[training\]\)"),
        ("model = 3\n", r"run.toml: model is a table: write \[model\]"),
        ("preset = 3\n", "run.toml: preset must be a name"),
        ("preset = 'gtp2'\n", "run.toml: no preset 'gtp2'"),
        ("[model]\nsteps = 3\n", r"\[model\]: unknown key 'steps' \(put it under \[training\]\)"),
        ("[model]\ncontext = 64\n", r"unknown key 'context' \(--context is 'context_length' under \[model\]\)"),
        ("[model\n", "run.toml: not TOML"),
        ('{"preset": "tiny"}', "run.toml: this is JSON"),
        ("[model]\nd_modl = 3\n", r"run.toml, \[model\]: unknown key 'd_modl' \(did you mean 'd_model'\?\)"),
        ("[model]\nd_model = 'wide'\n", r"run.toml, \[model\]: d_model must be a whole number, not 'wide'"),
        ("[training]\nsample = 'Once'\n", "sample must be a list of strings"),
    ],
)
def test_a_wrong_toml_key_is_named(tmp_path, text, message):
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(UsageError, match=message):
        read_toml(tmp_path / "run.toml")


def test_a_file_that_is_missing_or_no_text_is_named(tmp_path):
    (tmp_path / "run.toml").write_bytes(b"# \xff")
    with pytest.raises(InputError, match="run.toml: not valid UTF-8"):
        read_toml(tmp_path / "run.toml")
    with pytest.raises(InputError, match="none.toml: no such file"):
        read_toml(tmp_path / "none.toml")


@pytest.mark.parametrize("depth", [1, 2, 5, 12])
def test_a_depth_says_all_of_a_preset(depth):
    config, deeper = resolve(f"depth-{depth}"), resolve(f"depth-{depth + 1}")
    assert (config.model.n_layers, config.model.d_model, config.model.head_size) == (depth, 64 * depth, 64)
    assert config.training.learning_rate > deeper.training.learning_rate
    assert config.training.tokens < deeper.training.tokens
    assert config == RunConfig.from_dict(config.to_dict(), where="x")


@pytest.mark.parametrize("depth", [1, 3, 4, 5, 12])
def test_a_depth_says_all_of_a_preset_for_pairs(depth):
    config, deeper = (resolve(named_by_depth(each, pairs=True)) for each in (depth, depth + 1))
    shape = config.model
    assert (shape.n_layers, shape.n_encoder_layers, shape.d_model, shape.d_ff) == (
        depth,
        depth,
        64 * depth,
        256 * depth,
    )
    assert config.training.learning_rate > deeper.training.learning_rate
    assert config == RunConfig.from_dict(config.to_dict(), where="x")


@pytest.mark.parametrize("name", ["depth-0", "depth-100", "depth-", "depth-2b", "translation-depth-0", "translation-"])
def test_what_is_no_depth_is_no_preset(name):
    with pytest.raises(UsageError, match="no preset"):
        resolve(name)


def test_a_budget_brings_its_schedule_and_replaces_the_length():
    training = resolve("nanogpt-cpu", {"training": {"budget": "5m"}}).training
    assert (training.schedule, training.steps, training.budget) == ("wsd", None, "5m")
