"""Everything that a run is, to JSON and back, and from a TOML file."""

import dataclasses
import json

import pytest

from lm.config.presets import PRESETS, build_run_config
from lm.config.run_config import RunConfig, RunPlan


@pytest.mark.parametrize("name", PRESETS)
def test_a_run_config_survives_json(name):
    plan = RunPlan("cpu", "float32", 2, 10, "data", "key")
    config = dataclasses.replace(build_run_config(name), plan=plan, label_completions=("\njoy", "\nfear"))
    assert RunConfig.from_dict(json.loads(json.dumps(config.to_dict())), where="config.json") == config
