"""Settings from a TOML file, and what is said of those that are wrong."""

from __future__ import annotations

import pytest

from lm.config.presets import build_run_config
from lm.config.toml import read_toml
from lm.errors import InputError, UsageError


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
