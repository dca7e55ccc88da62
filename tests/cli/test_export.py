"""`lm export` says what it wrote and why, and refuses what it cannot write in a line."""

from __future__ import annotations

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


def test_a_run_without_a_counterpart_takes_its_code_along(tmp_path, capsys):
    folder, out = make_run(tmp_path / "novel", value_residual=True), tmp_path / "out"
    assert run(["export", str(folder), "-o", str(out)]) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert (
        "LMForCausalLM, whose code is in the folder (trust_remote_code=True): without value_residual True it would be "
        "LlamaForCausalLM"
    ) in told
    assert {"configuration_lm.py", "modeling_lm.py", "positions_lm.py"} < {path.name for path in out.iterdir()}


def test_what_even_that_cannot_be_and_a_system_that_is_not_known(tmp_path, capsys):
    folder, out = make_run(tmp_path / "novel", experts=2), tmp_path / "out"
    assert run(["export", str(folder), "-o", str(out)]) == 2
    assert "lm: a folder for transformers cannot have experts 2" in capsys.readouterr().err
    assert run(["export", str(folder), "-o", str(out), "--to", "hugingface"]) == 2
    assert "--to cannot be 'hugingface' (did you mean 'huggingface'?)" in capsys.readouterr().err
    assert not out.exists()
