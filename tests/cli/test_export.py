"""`lm export`, `import`, `average` and `merge` say what they wrote and why, or refuse it in a line."""

import re

import pytest
import torch

from cli.main import run
from lm.checkpoint import load_weights, save_checkpoint
from lm.run_folder import TrainingState, load_config
from tests.cli.small_runs import make_run, make_tokenizer


def test_the_kind_of_model_and_what_decided_it_are_reported(tmp_path, capsys):
    folder, out = make_run(tmp_path / "novel"), tmp_path / "out"
    assert run(["export", str(folder), "--to", "huggingface", "-o", str(out)]) == 0
    printed = capsys.readouterr()
    assert "LlamaForCausalLM of transformers, which needs no code of ours: norm rmsnorm" in printed.err
    assert not printed.out
    assert {path.name for path in out.iterdir()} == {
        "README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip


def test_a_file_for_llama_cpp(tmp_path, capsys):
    pytest.importorskip("gguf")
    folder, out = make_run(tmp_path / "novel", qk_norm=True), tmp_path / "novel.gguf"
    assert run(["export", str(folder), "--to", "gguf", "--type", "float16", "-o", str(out)]) == 0
    printed = capsys.readouterr()
    assert "qwen3 of llama.cpp, float16: norm rmsnorm" in printed.err
    assert "tokens  pre-tokenised as by gpt-2\n" in printed.err
    assert out.read_bytes()[:4] == b"GGUF"
    assert not printed.out


def test_a_folder_for_ctranslate2(tmp_path, capsys):
    pytest.importorskip("ctranslate2")
    folder, out = make_run(tmp_path / "novel"), tmp_path / "out"
    assert run(["export", str(folder), "--to", "ctranslate2", "--type", "int8", "-o", str(out)]) == 0
    assert "model   for ctranslate2.Generator, int8\n" in capsys.readouterr().err
    assert {path.name for path in out.iterdir()} == {"config.json", "model.bin", "tokenizer.json", "vocabulary.json"}


def test_a_run_without_a_counterpart_takes_its_code_along(tmp_path, capsys):
    folder, out = make_run(tmp_path / "novel", value_residual=True), tmp_path / "out"
    assert run(["export", str(folder), "-o", str(out)]) == 0
    printed = " ".join(capsys.readouterr().err.split())
    assert (
        "LMForCausalLM, with its code in the folder (trust_remote_code=True): without value_residual True it would be "
        "LlamaForCausalLM"
    ) in printed
    assert {"configuration_lm.py", "modeling_lm.py", "positions_lm.py"} < {path.name for path in out.iterdir()}


def test_the_kind_of_model_and_the_run_are_reported(tmp_path, capsys):
    assert run(["export", str(make_run(tmp_path / "novel")), "-o", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    assert run(["import", str(tmp_path / "out"), "-o", str(tmp_path / "again")]) == 0
    printed = capsys.readouterr()
    assert re.search(r"^model   LlamaForCausalLM, [\d.]+k parameters, context 32$", printed.err, re.MULTILINE)
    assert f"wrote   {tmp_path / 'again' / 'checkpoints' / 'step-0'}" in printed.err
    assert not printed.out
    assert run(["import", str(tmp_path / "out"), "-o", str(tmp_path / "again")]) == 1
    assert capsys.readouterr().err == f"lm: {tmp_path / 'again'}: holds a run already; choose another folder (--out)\n"


def test_the_latest_of_a_run_and_checkpoints_one_by_one(tmp_path, capsys):
    first = make_run(tmp_path / "novel") / "checkpoints" / "step-0"
    weights = {name: value + 2 for name, value in load_weights(first).items()}
    second = save_checkpoint(
        tmp_path / "novel",
        config=load_config(first),
        tokenizer=make_tokenizer("bpe"),
        model=weights,
        optimizer={},
        state=TrainingState(step=1),
        is_best=True,
    )
    assert run(["average", str(tmp_path / "novel"), "-o", str(tmp_path / "a")]) == 0
    assert "average of step-0, step-1" in capsys.readouterr().err
    assert run(["average", str(second), str(first), "-o", str(tmp_path / "b")]) == 0
    for name, value in load_weights(first).items():
        assert all(torch.allclose(load_weights(tmp_path / made)[name], value + 1) for made in "ab")
