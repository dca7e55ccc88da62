"""Exported files hold what the run has, as the format's own package and transformers read them."""

import sys

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from lm.api import export
from lm.checkpoint import load_model, load_weights
from lm.errors import InputError, UsageError
from lm.hardware import Hardware
from tests.cli.small_runs import make_run
from tests.lm.interop.gguf import llama_cpp_arithmetic
from tests.lm.interop.gguf.models import FAMILIES, plain_run, random_config
from tests.lm.interop.hugging_face.models import ids, random_run
from tests.tolerances import assert_close

gguf = pytest.importorskip("gguf")
IN_TRANSFORMERS = [name for name in FAMILIES if name != "gptneox"]  # which it does not read from such files
ERRORS = {"float32": 0.0, "float16": 2**-11, "bfloat16": 2**-8, "q8_0": 0.5 / 127 + 2**-11}
"""The largest errors, as shares of the largest number of 32 in a row."""


def read(path):
    """The settings and the tensors of a file."""
    reader = gguf.GGUFReader(path)
    tensors = {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
    return {name: field.contents() for name, field in reader.fields.items()}, tensors


@pytest.mark.parametrize("architecture", IN_TRANSFORMERS)
def test_transformers_reads_the_same_model(architecture, tmp_path):
    run = plain_run(tmp_path / "run", architecture)
    export(run, tmp_path / "out.gguf", "gguf")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="out.gguf").eval()
    assert theirs.config.model_type == FAMILIES[architecture]
    ours, tokens = load_model(run, Hardware("cpu", "float32", 1)).model, ids(2, 24)
    with torch.no_grad():
        assert_close(ours(tokens), theirs(tokens).logits, model=ours)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_llama_cpp_would_compute_the_same(architecture, seed, tmp_path):
    """With biases, each scaling of positions and heads of any size, which transformers' own reader leaves out."""
    run = random_run(tmp_path / "run", random_config(architecture, seed))
    export(run, tmp_path / "out.gguf", "gguf")
    tokens = ids(1, 30, seed=seed)
    model = load_model(run, Hardware("cpu", "float32", 1)).model
    with torch.no_grad():
        ours = model(tokens)[0].numpy()
    theirs = llama_cpp_arithmetic.logits(*read(tmp_path / "out.gguf"), tokens[0].tolist())
    assert_close(ours, theirs, model=model, dtype=torch.float32)


def test_gpt_neox_has_an_output_layer_and_all_biases(tmp_path):
    run = plain_run(tmp_path / "run", "gptneox")
    export(run, tmp_path / "out.gguf", "gguf")
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
    export(run, tmp_path / "exact.gguf", "gguf")
    export(run, tmp_path / "out.gguf", "gguf", type=number_type)
    (_, exact), (settings, theirs) = read(tmp_path / "exact.gguf"), read(tmp_path / "out.gguf")
    assert settings["general.file_type"] == {"float32": 0, "float16": 1, "bfloat16": 32, "q8_0": 7}[number_type]
    assert exact.keys() == theirs.keys()
    for name, value in exact.items():
        if value.ndim == 1:
            np.testing.assert_array_equal(theirs[name], value)
            continue
        rows = value.reshape(-1, 32)
        allowed = ERRORS[number_type] * np.abs(rows).max(axis=1, keepdims=True)
        assert (np.abs(theirs[name].reshape(-1, 32) - rows) <= allowed).all(), name


def test_a_model_is_refused_before_the_package_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UsageError, match="llama.cpp has no model with value_residual True"):
        export(make_run(tmp_path / "refused", value_residual=True), tmp_path / "out.gguf", "gguf")
    with pytest.raises(InputError, match="needs gguf: pip install gguf"):
        export(make_run(tmp_path / "run"), tmp_path / "out.gguf", "gguf")
