"""Exported files hold what the run has, as the format's own package and transformers read them."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from lm.checkpoint import load_model, load_weights
from lm.errors import InputError
from lm.hardware import Hardware
from lm.interop.gguf.exporting import export_gguf
from tests.cli.small_runs import make_run
from tests.lm.full_disk import full_disk
from tests.lm.interop.gguf import llama_cpp_arithmetic
from tests.lm.interop.gguf.models import FAMILIES, plain_run, random_config
from tests.lm.interop.hugging_face.models import ids, random_run
from tests.tolerances import assert_close

gguf = pytest.importorskip("gguf")
IN_TRANSFORMERS = [name for name in FAMILIES if name != "gptneox"]  # which it does not read from such files
ERRORS = {"float32": 0.0, "float16": 2**-11, "q8_0": 0.5 / 127 + 2**-11}
"""The largest errors, as shares of the largest number of 32 in a row."""


def read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The settings and the tensors of a file."""
    reader = gguf.GGUFReader(path)
    tensors = {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
    return {name: field.contents() for name, field in reader.fields.items()}, tensors


@pytest.mark.parametrize("architecture", IN_TRANSFORMERS)
def test_transformers_reads_the_same_model(architecture, tmp_path):
    run = plain_run(tmp_path / "run", architecture)
    export_gguf(run, tmp_path / "out.gguf")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="out.gguf").eval()
    assert theirs.config.model_type == FAMILIES[architecture]
    ours, tokens = load_model(run, Hardware("cpu", "float32", 1)).model, ids(2, 24)
    with torch.no_grad():
        assert_close(ours(tokens), theirs(tokens).logits, model=ours)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_llama_cpp_would_compute_the_same(architecture, seed, tmp_path):
    """With biases, each scaling of positions and heads of any size, which transformers' own reader leaves out."""
    run = random_run(tmp_path / "run", random_config(architecture, seed))
    export_gguf(run, tmp_path / "out.gguf")
    tokens = ids(1, 30, seed=seed)
    model = load_model(run, Hardware("cpu", "float32", 1)).model
    with torch.no_grad():
        ours = model(tokens)[0].numpy()
    theirs = llama_cpp_arithmetic.logits(*read(tmp_path / "out.gguf"), tokens[0].tolist())
    assert_close(ours, theirs, model=model, dtype=torch.float32)


def test_gpt_neox_has_an_output_layer_and_all_biases(tmp_path):
    run = plain_run(tmp_path / "run", "gptneox")
    export_gguf(run, tmp_path / "out.gguf")
    settings, tensors = read(tmp_path / "out.gguf")
    ours = load_weights(run)
    assert settings["gptneox.rope.dimension_count"] == 8
    assert settings["gptneox.use_parallel_residual"] is False
    for name in ("token_embd", "output"):
        np.testing.assert_array_equal(tensors[f"{name}.weight"], ours["embedding.tokens.weight"])
    for theirs, name in {
        "attn_qkv": "attention.input",
        "ffn_up": "feed_forward.up",
        "ffn_norm": "feed_forward_norm",
    }.items():
        np.testing.assert_array_equal(tensors[f"blk.1.{theirs}.weight"], ours[f"decoder.blocks.1.{name}.weight"])
        assert not tensors[f"blk.1.{theirs}.bias"].any()


@pytest.mark.parametrize("number_type", ERRORS)
@pytest.mark.parametrize("architecture", FAMILIES)
def test_matrices_are_of_the_type_that_is_asked_for(architecture, number_type, tmp_path):
    run = plain_run(tmp_path / "run", architecture)
    export_gguf(run, tmp_path / "exact.gguf")
    export_gguf(run, tmp_path / "out.gguf", number_type=number_type)
    (_, exact), (settings, theirs) = read(tmp_path / "exact.gguf"), read(tmp_path / "out.gguf")
    assert settings["general.file_type"] == {"float32": 0, "float16": 1, "q8_0": 7}[number_type]
    assert exact.keys() == theirs.keys()
    for name, value in exact.items():
        if value.ndim == 1:
            np.testing.assert_array_equal(theirs[name], value)
            continue
        rows = value.reshape(-1, 32)
        allowed = ERRORS[number_type] * np.abs(rows).max(axis=1, keepdims=True)
        assert (np.abs(theirs[name].reshape(-1, 32) - rows) <= allowed).all(), name


def test_where_32_do_not_divide_the_width_matrices_are_float16(tmp_path):
    run = make_run(tmp_path / "run", d_model=24, d_ff=64)
    export_gguf(run, tmp_path / "out.gguf", number_type="q8_0")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "out.gguf").tensors}
    assert kinds["blk.0.attn_q.weight"] == kinds["token_embd.weight"] == "F16"
    assert kinds["blk.0.ffn_down.weight"] == "Q8_0"
    assert kinds["blk.0.ffn_norm.weight"] == "F32"


def test_nothing_is_written_over(tmp_path):
    run, out = make_run(tmp_path / "run"), tmp_path / "out.gguf"
    out.write_text("something")
    with pytest.raises(InputError, match="out.gguf: already exists; choose a new file"):
        export_gguf(run, out)
    with pytest.raises(InputError, match="run: is a folder; name a file to write"):
        export_gguf(run, run)
    assert out.read_text() == "something"


def test_a_full_disk_leaves_nothing_behind(tmp_path):
    run = make_run(tmp_path / "run")
    with full_disk(after=20_000), pytest.raises(OSError) as raised:  # noqa: PT011 (which file is said below)
        export_gguf(run, tmp_path / "out.gguf")
    assert raised.value.filename == str(tmp_path / "out.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_without_the_package_its_extra_is_named(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(InputError, match="needs gguf: pip install gguf"):
        export_gguf(run, tmp_path / "out.gguf")
