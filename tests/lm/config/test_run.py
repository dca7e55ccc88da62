"""Everything that a run is, to JSON and back."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from lm.config.presets import PRESETS, build_run_config
from lm.config.run import RunConfig, RunPlan
from lm.errors import UsageError

PLAN = {"device": "cpu", "dtype": "float32", "threads": 1, "steps": 9, "data": "tokens", "data_key": "k"}


@pytest.mark.parametrize("name", PRESETS)
def test_a_run_config_survives_json(name):
    plan = RunPlan("cpu", "float32", 2, 10, "data", "key")
    config = dataclasses.replace(build_run_config(name), plan=plan, label_completions=("\njoy", "\nfear"))
    assert RunConfig.from_dict(json.loads(json.dumps(config.to_dict())), where="config.json") == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"training": []}, "config.json, training: must be names with values, not []"),
        ({"model": 3}, "config.json, model: must be names with values, not 3"),
        ({"model": {"vocab_size": "many"}}, "config.json, model: vocab_size must be an integer, not 'many'"),
        ({"label_completions": "joy"}, "config.json: label_completions must be a list of texts, not 'joy'"),
        ({"label_completions": [1]}, "config.json: label_completions must be a list of texts, not [1]"),
        ({"plan": []}, "config.json, plan: must be names with values, not []"),
        ({"plan": {**PLAN, "steps": None}}, "config.json, plan: steps must be an integer, not None"),
        ({"plan": {**PLAN, "steps": True}}, "config.json, plan: steps must be an integer, not True"),
        ({"plan": {**PLAN, "deadline": "soon"}}, "plan: deadline must be a number or nothing, not 'soon'"),
    ],
)
def test_settings_of_another_kind_are_named(change, message):
    values = {**RunConfig().to_dict(), **change}
    with pytest.raises(UsageError, match=re.escape(message)):
        RunConfig.from_dict(values, where="config.json")
    with pytest.raises(UsageError, match="config.json: must be names with values, not 7"):
        RunConfig.from_dict(7, where="config.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"training": {"source_loss": 1.0}}, "leave out its loss"),
        (
            {"model": {"decoder_only": True}, "parallel": {"separate_vocabularies": True}},
            "source and target share one vocabulary",
        ),
    ],
)
def test_settings_of_one_stack_that_do_not_go_together(change, message):
    with pytest.raises(UsageError, match=message):
        build_run_config("translation", change)


def test_a_whole_number_is_a_number_too():
    values = {**RunConfig().to_dict(), "plan": {**PLAN, "deadline": 60}}
    assert RunConfig.from_dict(values, where="config.json").plan.deadline == 60


def test_another_format_version_is_refused():
    with pytest.raises(UsageError, match="config.json: format version 999"):
        RunConfig.from_dict({**RunConfig().to_dict(), "format_version": 999}, where="config.json")


def test_a_model_with_experts_is_not_compiled():
    with pytest.raises(UsageError, match="experts is not compiled"):
        build_run_config("tiny", {"model": {"experts": 2}, "training": {"compile": True}})
