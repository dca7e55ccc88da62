"""Recurrent models from the command line: trained, resumed, decoded and scored like transformers."""

import json
from pathlib import Path

import pytest

from cli.main import run
from tests.cli.toy_translation import pairs
from tests.system.conftest import assert_resumes_exactly

SHAPE = ["--d-model", "32", "--vocab-size", "300", "--threads", "1", "--device", "cpu", "--dtype", "float32"]
LENGTH = ["--steps", "4", "--evaluate-every", "2", "--dropout", "0.2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A recurrent translation model and a recurrent language model, four steps old, and what they learned from."""
    folder = tmp_path_factory.mktemp("recurrent")
    for side, path in enumerate(("text.one", "text.eins")):
        lines = [pair[side] + "\n" for pair in pairs(120, seed=0)]
        (folder / path).write_text("".join(lines))
        (folder / f"few-{path}").write_text("".join(lines[:12]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LM_CACHE", str(folder / "cache"))
        command = ["train", *files(folder), "-o", str(folder / "mt"), "--preset", "seq2seq-tiny"]
        command += ["--set", "training.bleu_sentences=2", "--set", "training.ema=0.9"]
        assert run([*command, *SHAPE, *LENGTH]) == 0
        command = ["train", str(folder / "text.eins"), "-o", str(folder / "lm"), "--set", "model.architecture=gru"]
        assert run([*command, *SHAPE, *LENGTH, "--context", "16", "--sample", "drei"]) == 0
    return folder


def files(folder: Path, which: str = "") -> list[str]:
    return ["--source", str(folder / f"{which}text.one"), "--target", str(folder / f"{which}text.eins")]


@pytest.mark.parametrize("name", ["mt", "lm"])
def test_resuming_equals_never_having_stopped(folder, name, tmp_path):
    assert_resumes_exactly(folder / name, tmp_path / name, step=2)


def test_translate_evaluate_and_perplexity(folder, capsys):
    for options in (["--beam", "1"], ["--beam", "3"]):
        assert run(["translate", str(folder / "mt"), str(folder / "few-text.one"), *options]) == 0
        assert capsys.readouterr().out.count("\n") == 12
    assert run(["evaluate", str(folder / "mt"), *files(folder, "few-"), "--json"]) == 0
    assert "bleu" in capsys.readouterr().out.lower()
    assert run(["perplexity", str(folder / "mt"), *files(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_attention_is_that_to_the_source(folder, capsys):
    command = ["attention", str(folder / "mt"), "one two three", "--json"]
    assert run([*command, "--target", "drei zwei eins"]) == 0
    assert json.loads(capsys.readouterr().out)
