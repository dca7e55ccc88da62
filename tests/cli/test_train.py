"""`lm train`: where a run begins, with which tokens, and how it is resumed."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from cli.main import run
from lm.run_folder import load_config
from lm.training.run_log import load_curves
from tests.system.conftest import SMALL
from tests.tolerances import approx


def test_without_out_the_run_gets_a_name_of_its_own(place, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert run(["train", str(place / "text.txt"), "--steps", "2", *SMALL]) == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["text-tiny", "text-tiny-2"]


def test_a_command_that_fails_leaves_no_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_bytes(b"\xff")
    assert run(["train", "text.txt", "--steps", "2", *SMALL]) == 1
    assert not (tmp_path / "runs").exists()


def test_prepared_tokens_are_a_corpus_for_a_run_with_their_tokenizer(place, tmp_path):
    tokens, first, shape = str(tmp_path / "tokens"), tmp_path / "first", SMALL[:-2]
    assert run(["prepare", str(place / "text.txt"), "-o", tokens, "--tokenizer", "char"]) == 0
    assert run(["train", tokens, "-o", str(first), "--steps", "1", *shape]) == 0
    assert run(["train", tokens, "-o", str(tmp_path / "tuned"), "--steps", "1", "--from", str(first)]) == 0
    for more in (["--tokenizer", tokens], [str(place / "text.txt")]):
        assert run(["train", tokens, "-o", str(tmp_path / "other"), "--steps", "1", *more, *shape]) == 2
    assert run(["train", tokens, "--resume", str(first), "--steps", "2"]) == 0


def test_damaged_tokens_are_named_and_not_trained_on(place, capsys, tmp_path):
    """In a folder that is named, and in that of a resumed run."""
    tokens, begun = tmp_path / "tokens", str(tmp_path / "begun")
    assert run(["prepare", str(place / "text.txt"), "-o", str(tokens), "--tokenizer", "byte"]) == 0
    assert run(["train", str(tokens), "-o", begun, "--steps", "1", *SMALL[:-2]]) == 0
    (shard,) = tokens.rglob("train-tokens.npy")
    np.save(shard, np.zeros_like(np.load(shard)))
    capsys.readouterr()
    for command in ([str(tokens), "-o", str(tmp_path / "run"), *SMALL[:-2]], ["--resume", begun]):
        assert run(["train", *command, "--steps", "2"]) == 1
        assert capsys.readouterr().err.splitlines()[-1].startswith(f"lm: {shard}: missing or damaged")
    assert not (tmp_path / "run").exists()
    assert run(["train", str(place / "text.txt"), "--resume", begun, "--steps", "2"]) == 0


def test_a_checkpoint_is_resumed_in_a_new_run(place, tmp_path, monkeypatch):
    text, first, again = str(place / "text.txt"), tmp_path / "first", tmp_path / "again"
    command = ["train", text, "-o", str(first), "--steps", "4", "--evaluate-every", "2", *SMALL]
    assert run(command) == 0
    resume = ["train", "--resume", str(first / "checkpoints" / "step-2")]
    assert run(resume) == 2
    monkeypatch.chdir(first / "checkpoints")
    assert run(["train", "--resume", "step-2", "-o", str(again)]) == 0
    assert (again / "metrics.jsonl").read_bytes() == (first / "metrics.jsonl").read_bytes()


def test_a_run_whose_tokens_are_gone_takes_its_corpus_again_and_no_other(place):
    text, folder = place / "gone.txt", place / "gone"
    text.write_text((place / "text.txt").read_text() + "\nseven")
    assert run(["train", str(text), "-o", str(folder), "--steps", "2", *SMALL]) == 0
    shutil.rmtree(json.loads((folder / "config.json").read_text())["plan"]["data"])
    for corpus, code in (([], 1), ([str(place / "text.txt")], 1), ([str(text)], 0)):
        assert run(["train", *corpus, "--resume", str(folder), "--steps", "4"]) == code


def test_stdout_has_only_what_is_asked_for(place, tmp_path, capsys):
    folder = tmp_path / "my run"
    assert run(["train", str(place / "text.txt"), "-o", str(folder), "--steps", "5", "--json", *SMALL]) == 0
    output = capsys.readouterr()
    summary = json.loads(output.out)
    assert (summary["run"], summary["steps"], summary["finished"]) == (str(folder), 5, True)
    assert summary["best_step"] == 5
    assert "\x1b" not in output.err
    assert "validation loss" in output.err
    assert f"next    lm generate '{folder}'\n" in output.err
    assert run(["train", "--resume", str(folder), "--steps", "6", "--threads", "3"]) == 0
    assert capsys.readouterr().out == ""
    assert load_config(folder).plan.threads == 3


CURVES = ("loss", "nll", "learning_rate", "gradient_norm", "seconds", "validation_loss", "validation_bits_per_byte")
LENGTH = ("--steps", "6", "--evaluate-every", "2", "--sample", "the fox")


@pytest.fixture
def train(tmp_path, monkeypatch):
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 100)

    def trained(*flags: str) -> Path:
        assert run(["train", str(text), "-o", str(tmp_path / "run"), *SMALL, *LENGTH, *flags]) == 0
        return tmp_path / "run"

    return trained


def read(folder: Path):
    """TensorBoard's own reading of a run, nothing left out."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    everything = {accumulator.SCALARS: 0, accumulator.TENSORS: 0}
    events = accumulator.EventAccumulator(str(folder / "tensorboard"), size_guidance=everything)
    events.Reload()
    return events


def assert_equals_the_log(folder: Path) -> None:
    events, log = read(folder), load_curves(folder)
    for name in CURVES:
        shown = events.Scalars(name)
        assert [event.step for event in shown] == list(log[name])
        assert [event.value for event in shown] == approx(list(log[name].values()), terms=1)


def test_a_resumed_run_continues_with_it(train):
    folder = train("--set", "training.tensorboard=true")
    assert run(["train", "--resume", str(folder), "--steps", "8"]) == 0
    assert [event.step for event in read(folder).Scalars("loss")] == list(range(1, 9))
    assert_equals_the_log(folder)
