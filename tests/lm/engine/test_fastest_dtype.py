"""What was measured to be fastest is taken for the weights and on the processor that it was measured with."""

from __future__ import annotations

import pytest
import torch

from lm.config.hardware import HardwareConfig
from lm.decoding.generator import Generator
from lm.engine import fastest_dtype
from lm.engine.fastest_dtype import decoding_dtype, load_for_decoding, read_fastest_dtype, save_fastest_dtype
from lm.kernels import code_cache
from lm.run_folder import find_checkpoint
from tests.cli.small_runs import make_run, make_tokenizer

CPU = HardwareConfig(device="cpu")


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(code_cache, "is_ready", lambda *_: True)
    return make_run(tmp_path / "run")


def test_it_is_of_these_weights_and_this_processor(run, tmp_path, monkeypatch):
    checkpoint = find_checkpoint(run)
    assert read_fastest_dtype(checkpoint, "cpu") == "float32"
    save_fastest_dtype(checkpoint, "cpu", "int8")
    assert read_fastest_dtype(checkpoint, "cpu") == "int8"
    (tmp_path / "moved").mkdir()
    assert read_fastest_dtype(checkpoint.rename(tmp_path / "moved" / "step-0"), "cpu") == "int8"
    assert read_fastest_dtype(find_checkpoint(make_run(tmp_path / "other", init_std=0.2)), "cpu") == "float32"
    monkeypatch.setattr(fastest_dtype, "describe_processor", lambda _: "another")
    assert read_fastest_dtype(tmp_path / "moved" / "step-0", "cpu") == "float32"


def test_8_bits_need_the_compiled_step(run, monkeypatch):
    save_fastest_dtype(find_checkpoint(run), "cpu", "int8")
    monkeypatch.setattr(code_cache, "is_ready", lambda *_: False)
    assert read_fastest_dtype(find_checkpoint(run), "cpu") == "float32"


@pytest.mark.parametrize("told", [b"float128", b"", b"\xff\xfe\x00", b"\x00" * 4096])
def test_what_is_no_type_is_none(told, run, tmp_path):
    save_fastest_dtype(find_checkpoint(run), "cpu", "int8")
    (file,) = (tmp_path / "cache" / "types").iterdir()
    file.write_bytes(told)
    assert read_fastest_dtype(find_checkpoint(run), "cpu") == "float32"


def test_8_bits_that_were_chosen_are_those_that_can_be_asked_for(run):
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
