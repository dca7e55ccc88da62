"""The recorded dtype of a checkpoint is used, for its weights and wherever it is, unless another is asked for."""

import pytest
import torch

from cli.main import run as run_command
from lm.config.run_config import HardwareConfig
from lm.engine import decoding_dtype, load_for_decoding, read_recorded_dtypes, save_fastest_dtype
from lm.run_folder import find_checkpoint
from tests.cli.small_runs import make_run


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    return make_run(tmp_path / "run")


def test_it_is_of_these_weights_wherever_they_are(run, tmp_path):
    checkpoint = find_checkpoint(run)
    assert read_recorded_dtypes(checkpoint) == {}
    save_fastest_dtype(checkpoint, "cpu", "int8")
    save_fastest_dtype(checkpoint, "cuda", "bfloat16")
    moved = run.rename(tmp_path / "moved")
    assert read_recorded_dtypes(find_checkpoint(moved)) == {"cpu": "int8", "cuda": "bfloat16"}
    other = find_checkpoint(make_run(tmp_path / "other", init_std=0.2))
    (other / "decoding.json").write_bytes((find_checkpoint(moved) / "decoding.json").read_bytes())
    assert read_recorded_dtypes(other) == {}


def test_the_recorded_dtype_is_used_shown_and_overridable(run, capsys):
    save_fastest_dtype(find_checkpoint(run), "cpu", "int8")
    asked = [HardwareConfig(device="cpu", dtype=dtype) for dtype in ("auto", "int8", "float32")]
    assert [decoding_dtype(run, each) for each in asked] == ["int8", "int8", "float32"]
    ids = torch.arange(9)[None]
    logits = [load_for_decoding(run, each).model(ids) for each in asked]
    assert torch.equal(logits[0], logits[1])
    assert (logits[0] - logits[2]).abs().max() > 1e-3
    assert run_command(["generate", str(run), "The", "--device", "cpu", "--stats", "--max-tokens", "3"]) == 0
    assert ", int8, " in capsys.readouterr().err
