"""`lm export` says what it wrote and why, and refuses what it cannot write in a line."""

from __future__ import annotations

import pytest

from cli.main import run
from tests.cli.small_runs import make_run


def test_the_kind_of_model_and_what_decided_it_are_told(tmp_path, capsys):
    folder, out = make_run(tmp_path / "novel"), tmp_path / "out"
    assert run(["export", str(folder), "--to", "huggingface", "-o", str(out)]) == 0
    told = capsys.readouterr()
    assert "LlamaForCausalLM of transformers, which needs no code of ours: norm rmsnorm" in told.err
    assert not told.out
    assert {path.name for path in out.iterdir()} == {
        "README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip


def test_a_file_for_llama_cpp(tmp_path, capsys):
    pytest.importorskip("gguf")
    folder, out = make_run(tmp_path / "novel", qk_norm=True), tmp_path / "novel.gguf"
    assert run(["export", str(folder), "--to", "gguf", "--type", "float16", "-o", str(out)]) == 0
    told = capsys.readouterr()
    assert "qwen3 of llama.cpp, float16: norm rmsnorm" in told.err
    assert "words   parted as by gpt-2\n" in told.err
    assert out.read_bytes()[:4] == b"GGUF"
    assert not told.out


def test_a_folder_for_ctranslate2(tmp_path, capsys):
    pytest.importorskip("ctranslate2")
    folder, out = make_run(tmp_path / "novel"), tmp_path / "out"
    assert run(["export", str(folder), "--to", "ctranslate2", "--type", "int8", "-o", str(out)]) == 0
    assert "model   for ctranslate2.Generator, int8\n" in capsys.readouterr().err
    assert {path.name for path in out.iterdir()} == {"config.json", "model.bin", "tokenizer.json", "vocabulary.json"}


def test_a_type_that_the_system_has_not(tmp_path, capsys):
    folder, out = make_run(tmp_path / "novel"), tmp_path / "out"
    assert run(["export", str(folder), "--to", "gguf", "--type", "int8", "-o", str(out)]) == 2
    assert capsys.readouterr().err == (
        "lm: gguf cannot have the type 'int8'; choose from float32, float16, q8_0 (--type)\n"
    )
    assert not out.exists()


def test_a_run_without_a_counterpart_takes_its_code_along(tmp_path, capsys):
    folder, out = make_run(tmp_path / "novel", value_residual=True), tmp_path / "out"
    assert run(["export", str(folder), "-o", str(out)]) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert (
        "LMForCausalLM, with its code in the folder (trust_remote_code=True): without value_residual True it would be "
        "LlamaForCausalLM"
    ) in told
    assert {"configuration_lm.py", "modeling_lm.py", "positions_lm.py"} < {path.name for path in out.iterdir()}


def test_what_even_that_cannot_be_and_a_system_that_is_not_known(tmp_path, capsys):
    folder, out = make_run(tmp_path / "novel", experts=2), tmp_path / "out"
    assert run(["export", str(folder), "-o", str(out)]) == 2
    assert "lm: transformers has no model with experts 2: train one" in capsys.readouterr().err
    assert run(["export", str(folder), "-o", str(out), "--to", "hugingface"]) == 2
    assert "lm: to cannot be 'hugingface' (did you mean 'huggingface'?)" in capsys.readouterr().err
    assert not out.exists()
