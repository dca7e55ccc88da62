"""`lm export`, `import`, `average` and `merge` write whole runs and models."""

import re

import pytest
import torch

from cli.main import run
from lm.checkpoint import load_weights, save_checkpoint
from lm.run_folder import TrainingState, load_config
from tests.cli.small_runs import make_run, make_tokenizer


def test_a_file_for_llama_cpp(tmp_path, capsys):
    pytest.importorskip("gguf")
    folder, out = make_run(tmp_path / "novel", qk_norm=True), tmp_path / "novel.gguf"
    assert run(["export", str(folder), "--to", "gguf", "--type", "float16", "-o", str(out)]) == 0
    printed = capsys.readouterr()
    assert "qwen3 of llama.cpp, float16" in printed.err
    assert out.read_bytes()[:4] == b"GGUF"
    assert not printed.out


def test_an_exported_model_is_imported_again(tmp_path, capsys):
    assert run(["export", str(make_run(tmp_path / "novel")), "-o", str(tmp_path / "out")]) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip
    capsys.readouterr()
    assert run(["import", str(tmp_path / "out"), "-o", str(tmp_path / "again")]) == 0
    printed = capsys.readouterr()
    assert re.search(r"^model   [\d.]+k parameters, context 32$", printed.err, re.MULTILINE)
    assert not printed.out


def test_the_latest_of_a_run_and_checkpoints_one_by_one(tmp_path):
    first = make_run(tmp_path / "novel") / "checkpoints" / "step-0"
    weights = {name: value + 2 for name, value in load_weights(first).items()}
    second = save_checkpoint(
        tmp_path / "novel",
        config=load_config(first),
        tokenizer=make_tokenizer("bpe"),
        model=weights,
        state=TrainingState(step=1),
        is_best=True,
    )
    assert run(["average", str(tmp_path / "novel"), "-o", str(tmp_path / "a")]) == 0
    assert run(["average", str(second), str(first), "-o", str(tmp_path / "b")]) == 0
    for name, value in load_weights(first).items():
        assert all(torch.allclose(load_weights(tmp_path / made)[name], value + 1) for made in "ab")
