"""The recorded dtype of a checkpoint is used, for its weights and wherever it is, unless another is asked for."""

import pytest
import torch

from cli.main import run as run_command
from lm.config.hardware import HardwareConfig
from lm.decoding.generator import Generator
from lm.engine.fastest_dtype import decoding_dtype, load_for_decoding, read_fastest_dtype, save_fastest_dtype
from lm.run_folder import find_checkpoint
from tests.cli.small_runs import make_run, make_tokenizer


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    return make_run(tmp_path / "run")


def test_it_is_of_these_weights_wherever_they_are(run, tmp_path):
    checkpoint = find_checkpoint(run)
    assert read_fastest_dtype(checkpoint, "cpu") == "float32"
    save_fastest_dtype(checkpoint, "cpu", "int8")
    save_fastest_dtype(checkpoint, "cuda", "bfloat16")
    assert [read_fastest_dtype(checkpoint, device) for device in ("cpu", "cuda", "mps")] == [
        "int8",
        "bfloat16",
        "float32",
    ]
    moved = run.rename(tmp_path / "moved")
    assert read_fastest_dtype(find_checkpoint(moved), "cpu") == "int8"
    other = find_checkpoint(make_run(tmp_path / "other", init_std=0.2))
    (other / "decoding.json").write_bytes((find_checkpoint(moved) / "decoding.json").read_bytes())
    assert read_fastest_dtype(other, "cpu") == "float32"


def test_the_recorded_dtype_is_used_shown_and_overridable(run, capsys):
    save_fastest_dtype(find_checkpoint(run), "cpu", "int8")
    ids = torch.arange(9)[None]
    auto, asked, plain = (
        load_for_decoding(run, HardwareConfig(device="cpu", dtype=dtype)).model for dtype in ("auto", "int8", "float32")
    )
    assert torch.equal(auto(ids), asked(ids))
    assert (auto(ids) - plain(ids)).abs().max() > 1e-3
    tokenizer = make_tokenizer("bpe")
    assert [Generator(model, tokenizer).plan().dtype for model in (auto, plain)] == ["int8", "float32"]
    asked = [HardwareConfig(device="cpu", dtype=dtype) for dtype in ("auto", "int8", "float32")]
    assert [decoding_dtype(run, each) for each in asked] == ["int8", "int8", "float32"]
    for flags, dtype in (((), "int8"), (("--dtype", "float32"), "float32")):
        assert (
            run_command(["generate", str(run), "The owl", "--device", "cpu", "--stats", "--max-tokens", "3", *flags])
            == 0
        )
        assert f", {dtype}, " in capsys.readouterr().err
    assert run_command(["info", str(run)]) == 0
    assert "decoding dtypes           cpu int8" in capsys.readouterr().out
