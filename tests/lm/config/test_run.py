"""Everything that a run is, to JSON and back, and from a TOML file."""

import dataclasses
import json
import re

import pytest
from lm.config.toml import read_toml

from lm.config.presets import PRESETS, build_run_config
from lm.config.run_config import RunConfig, RunPlan
from lm.config.run_spec import DataFiles
from lm.errors import InputError, UsageError

PLAN = {"device": "cpu", "dtype": "float32", "threads": 1, "steps": 9, "data": "tokens", "data_key": "k"}


@pytest.mark.parametrize("name", PRESETS)
def test_a_run_config_survives_json(name):
    plan = RunPlan("cpu", "float32", 2, 10, "data", "key")
    config = dataclasses.replace(build_run_config(name), plan=plan, label_completions=("\njoy", "\nfear"))
    assert RunConfig.from_dict(json.loads(json.dumps(config.to_dict())), where="config.json") == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"training": []}, "config.json, training: must be an object of keys and values, not []"),
        ({"model": 3}, "config.json, model: must be an object of keys and values, not 3"),
        ({"model": {"vocab_size": "many"}}, "config.json, model: vocab_size must be an integer, not 'many'"),
        ({"label_completions": "joy"}, "config.json: label_completions must be a list of strings, not 'joy'"),
        ({"label_completions": [1]}, "config.json: label_completions must be a list of strings, not [1]"),
        ({"plan": []}, "config.json, plan: must be an object of keys and values, not []"),
        ({"plan": {**PLAN, "steps": None}}, "config.json, plan: steps must be an integer, not None"),
        ({"plan": {**PLAN, "steps": True}}, "config.json, plan: steps must be an integer, not True"),
        ({"plan": {**PLAN, "budget_seconds": "soon"}}, "plan: budget_seconds must be a number or nothing, not 'soon'"),
    ],
)
def test_settings_of_another_kind_are_named(change, message):
    values = {**RunConfig().to_dict(), **change}
    with pytest.raises(UsageError, match=re.escape(message)):
        RunConfig.from_dict(values, where="config.json")
    with pytest.raises(UsageError, match="config.json: must be an object of keys and values, not 7"):
        RunConfig.from_dict(7, where="config.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model": {"decoder_only": True}, "parallel": {"separate_vocabularies": True}},
            "source and target share one vocabulary",
        ),
    ],
)
def test_settings_of_decoder_only_that_do_not_go_together(change, message):
    with pytest.raises(UsageError, match=message):
        build_run_config("translation", change)


def test_a_whole_number_is_a_number_too():
    values = {**RunConfig().to_dict(), "plan": {**PLAN, "budget_seconds": 60}}
    assert RunConfig.from_dict(values, where="config.json").plan.budget_seconds == 60


def test_the_format_version_is_2_and_another_one_is_refused():
    values = RunConfig().to_dict()
    assert values["format_version"] == 2
    for version, message in ((3, "3 is not 2$"), (1, "1 is not 2$"), (None, "None is not 2$")):
        with pytest.raises(UsageError, match=f"config.json: format version {message}"):
            RunConfig.from_dict({**values, "format_version": version}, where="config.json")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"source": ("-",), "target": ("-",)}, "stdin .* stands for one file only"),
        ({"source": ("a",)}, "source and target go together"),
        ({"target": ("a",)}, "source and target go together"),
        ({"source": ("a",), "target": ("b",), "validation_source": "c"}, "validation sources and targets go together"),
        ({"text": ("a",), "heads": ("h",)}, "dependency heads need sources"),
        ({"source": ("a",), "target": ("b",), "heads": ("h",), "validation_source": "c", "validation_target": "d"},
         "give dependency heads of the validation sources too"),
        ({"source": ("a",), "target": ("b",), "validation_heads": "h"}, "dependency heads of validation sources need"),
        ({"text": ("a",), "pairs": ("b",)}, "a run learns from a text or from pairs"),
    ],
)  # fmt: skip
def test_files_that_do_not_go_together_are_refused(files, message):
    with pytest.raises(UsageError, match=message):
        DataFiles(**files)


def test_files_that_go_together():
    both = {"source": ("a",), "target": ("-",), "heads": ("h",)}
    assert DataFiles(**both).are_pairs
    assert DataFiles(**both, validation_source="c", validation_target="d", validation_heads="e").are_pairs
    assert DataFiles(pairs=("-",), heads=("h",)).are_pairs
    assert not DataFiles(text=("-",)).are_pairs


def test_bidirectional_runs_and_imported_models_have_language_tags():
    translation = build_run_config("translation")
    assert not translation.has_language_tags
    assert build_run_config("translation", {"parallel": {"bidirectional": True}}).has_language_tags
    assert dataclasses.replace(translation, preset=None).has_language_tags


def test_a_model_with_experts_is_not_compiled():
    with pytest.raises(UsageError, match="experts is not compiled"):
        build_run_config("tiny", {"model": {"experts": 2}, "training": {"compile": True}})


def test_files_have_a_first_name_whatever_they_hold():
    assert DataFiles(("a.txt", "b.txt")).first == "a.txt"
    assert DataFiles(source=("a.en",), target=("a.de",)).first == "a.en"
    assert DataFiles(pairs=("a.tsv",)).first == "a.tsv"
    assert not DataFiles()


def test_a_toml_file_is_read_by_section(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('preset = "small"\n[model]\nd_model = 96\n[training]\nsample = ["Once"]\nlearning_rate = 1\n')
    name, given = read_toml(path)
    config = build_run_config(name, given)
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
        ("[model]\ncontext = 64\n", r"unknown key 'context' \(it is 'context_length' under \[model\]\)"),
        ("[model\n", "run.toml: not TOML"),
        ('{"preset": "tiny"}', "run.toml: this is JSON"),
        ("[model]\nd_modl = 3\n", r"run.toml, \[model\]: unknown key 'd_modl' \(did you mean 'd_model'\?\)"),
        ("[model]\nd_model = 'wide'\n", r"run.toml, \[model\]: d_model must be an integer, not 'wide'"),
        ("[training]\nsample = 'Once'\n", "sample must be a list of strings"),
        pytest.param(f"[training]\nsteps = {'9' * 5000}\n", "not TOML: an integer has thousands of digits", id="5,000"),
        pytest.param(f"[training]\nsteps = {'9' * 400}\n", r"steps must be at most .*\(400 characters\)", id="400"),
        pytest.param(f"[training]\nlearning_rate = {'9' * 400}\n", "must be a finite number, not 9+…", id="no float"),
        pytest.param("a = " + "[" * 50_000, "not TOML: tables or lists are nested too deep", id="deep"),
        pytest.param("a = " + "[" * 50_000 + "]" * 50_000, "nested too deep", id="deep and closed"),
    ],
)
def test_a_wrong_toml_key_is_named(tmp_path, text, message):
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(UsageError, match=message):
        read_toml(tmp_path / "run.toml")


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    (tmp_path / "run.toml").write_bytes(b"\xef\xbb\xbf[training]\nsteps = 3\n")
    assert read_toml(tmp_path / "run.toml") == (None, {"training": {"steps": 3}})
    (tmp_path / "run.toml").write_bytes(b"\xef\xbb\xbf# \xff")
    with pytest.raises(InputError, match="at byte offset 5"):
        read_toml(tmp_path / "run.toml")


def test_a_file_that_is_missing_or_no_text_is_named(tmp_path):
    (tmp_path / "run.toml").write_bytes(b"# \xff")
    with pytest.raises(InputError, match="run.toml: not valid UTF-8"):
        read_toml(tmp_path / "run.toml")
    with pytest.raises(InputError, match="none.toml: no such file"):
        read_toml(tmp_path / "none.toml")
