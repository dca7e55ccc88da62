"""Recurrent models from the command line: trained, resumed and decoded like transformers."""

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
        (folder / path).write_text("".join(pair[side] + "\n" for pair in pairs(120, seed=0)))
    (folder / "few.one").write_text("one two\nthree\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LM_CACHE", str(folder / "cache"))
        files = ["--source", str(folder / "text.one"), "--target", str(folder / "text.eins")]
        command = ["train", *files, "-o", str(folder / "mt"), "--preset", "seq2seq-tiny"]
        command += ["--set", "training.bleu_sentences=2", "--set", "training.ema=0.9"]
        assert run([*command, *SHAPE, *LENGTH]) == 0
        command = ["train", str(folder / "text.eins"), "-o", str(folder / "lm"), "--set", "model.architecture=gru"]
        assert run([*command, *SHAPE, *LENGTH, "--context", "16", "--sample", "drei"]) == 0
    return folder


@pytest.mark.parametrize("name", ["mt", "lm"])
def test_resuming_equals_never_having_stopped(folder, name, tmp_path):
    assert_resumes_exactly(folder / name, tmp_path / name, step=2)


def test_it_translates_and_attends_to_the_source(folder, succeed):
    assert succeed("translate", folder / "mt", folder / "few.one").count("\n") == 2
    command = ["attention", folder / "mt", "one two three", "--target", "drei zwei eins", "--json"]
    assert json.loads(succeed(*command))["kind"] == "cross"
