"""Adapters to a run are trained, used by every command with or without its base, merged, and taken to other systems."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from cli.main import run
from lm.run_folder import find_checkpoint
from tests.cli.small_runs import TEXT, make_run
from tests.cli.toy_translation import pairs
from tests.system.conftest import SMALL

QUICK = ["--steps", "4", "--evaluate-every", "2", "--batch-size", "4", "--learning-rate", "1e-2"]
LORA = ["--lora", "2", *QUICK]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A folder with a run, one that has adapters to it, and what they were trained on."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "text.txt").write_text(TEXT * 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LM_CACHE", str(folder / "cache"))
        patch.chdir(folder)
        llama = [
            "--set",
            "model.norm=rmsnorm",
            "--set",
            "model.activation=swiglu",
            "--set",
            "model.qk_norm=false",
            "--set",
            "model.value_residual=false",
            "--set",
            "model.zero_init=false",
        ]
        assert run(["train", "text.txt", "-o", "runs/base", "--steps", "6", *SMALL, *llama]) == 0
        assert run(["train", "text.txt", "--from", "runs/base", "-o", "runs/tuned", *LORA]) == 0
        yield folder


@pytest.fixture
def told(home, monkeypatch, capsys):
    """Runs a command in that folder; returns what it wrote to stdout and to stderr."""
    monkeypatch.chdir(home)
    capsys.readouterr()

    def succeed(*arguments: str) -> tuple[str, str]:
        code = run(list(arguments))
        output = capsys.readouterr()
        assert code == 0, output.err
        return output.out, output.err

    return succeed


@pytest.mark.parametrize(
    "arguments",
    [["generate", "runs/tuned", "The owl", "--temperature", "0", "--max-tokens", "8"], ["info", "runs/tuned"],
     ["generate", "runs/tuned", "The owl", "--beam", "2", "--max-tokens", "8"], ["attention", "runs/tuned", "The owl"],
     ["perplexity", "runs/tuned", "text.txt", "--versus", "runs/base"], ["tokenizer", "encode", "runs/tuned", "The"],
     ["plot", "runs/tuned"]],
)  # fmt: skip
def test_commands_take_it(arguments, told):
    assert told(*arguments)[0]


def test_it_computes_what_the_merged_run_does(told):
    told("merge", "runs/tuned", "-o", "runs/merged")
    figures = [json.loads(told("perplexity", f"runs/{name}", "text.txt", "--json")[0])["total"]["perplexity"]
               for name in ("tuned", "merged", "base")]  # fmt: skip
    assert figures[0] == figures[1]
    assert figures[0] < figures[2]
    assert "warning" in told("perplexity", "runs/merged", "text.txt")[1], "this is training text"


def test_it_is_resumed_averaged_and_trained_on(told):
    told("train", "--resume", "runs/tuned", "--steps", "6")
    told("average", "runs/tuned", "-o", "runs/mean")
    told("train", "text.txt", "--from", "runs/tuned", "-o", "runs/whole", *QUICK)
    assert "token embeddings" in told("info", "runs/whole")[0]


def test_translation_has_adapters_too(told, home):
    make_run(home / "runs" / "backwards", n_encoder_layers=1)
    for language, lines in zip(("en", "de"), zip(*pairs(12, seed=1), strict=True), strict=True):
        (home / f"text.{language}").write_text("\n".join(lines) + "\n")
    files = ["--source", "text.en", "--target", "text.de"]
    told("train", *files, "--from", "runs/backwards", "-o", "runs/translation", "--lora", "2", "--steps", "3",
         "--evaluate-every", "2", "--batch-tokens", "200", "--set", "training.warmup_steps=1")  # fmt: skip
    assert told("evaluate", "runs/translation", *files)[0]
    saved = load_file(find_checkpoint(home / "runs" / "translation", which="last") / "model.safetensors")
    assert any("cross_attention" in name for name in saved)


def test_it_is_used_without_its_base(home, tmp_path, monkeypatch, capsys):
    shutil.copytree(home / "runs" / "tuned", tmp_path / "tuned")
    monkeypatch.chdir(tmp_path)
    for arguments in (["generate", "tuned", "x", "--max-tokens", "2"], ["merge", "tuned", "-o", "x"],
                      ["export", "tuned", "-o", "y"], ["export", "tuned", "--to", "peft", "-o", "z"],
                      ["import", "z", "--from", str(home / "runs" / "base"), "-o", "back"],
                      ["average", "tuned", "-o", "w"], ["info", "tuned"]):  # fmt: skip
        assert run(arguments) == 0
    capsys.readouterr()
    assert run(["runs", ".", "--json"]) == 0
    listed = {each["run"]: each for each in json.loads(capsys.readouterr().out)}
    assert listed["tuned"]["parameters"] > listed["x"]["parameters"]


def test_a_missing_base_is_an_error_of_a_line(home, tmp_path, monkeypatch, capsys):
    shutil.copytree(home / "runs" / "tuned", tmp_path / "tuned")
    (tmp_path / "tuned" / "base.safetensors").unlink()
    monkeypatch.chdir(tmp_path)
    for arguments in (["generate", "tuned", "x"], ["merge", "tuned", "-o", "x"], ["export", "tuned", "-o", "y"]):
        assert run(arguments) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("lm: tuned/base.safetensors: ")
