"""A new run has a folder of its own."""

from __future__ import annotations

import copy
import json

import pytest

from cli.main import run
from lm.locks import LockFile
from lm.run_folder import SOURCE_TOKENIZER, TOKENIZER, find_checkpoint, find_tokenizer
from lm.tokenizer.tokenizer import Tokenizer
from lm.training.corpus import TextCorpus
from tests.system.conftest import SMALL


def test_without_out_the_run_gets_a_name_of_its_own(place, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert run(["train", str(place / "text.txt"), "--steps", "2", *SMALL]) == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["text-tiny", "text-tiny-2"]


def test_a_folder_in_which_another_process_trains_is_refused_before_anything_is_prepared(place, capsys, tmp_path):
    lock = LockFile(tmp_path / "run" / ".lock")
    lock.acquire()
    capsys.readouterr()
    assert run(["train", str(place / "text.txt"), "-o", str(tmp_path / "run"), "--steps", "3", *SMALL]) == 1
    assert capsys.readouterr().err.startswith(f"lm: {tmp_path / 'run'}: another process is training this run; wait")
    lock.release()
    assert run(["train", str(place / "text.txt"), "-o", str(tmp_path / "run"), "--steps", "3", *SMALL]) == 0


@pytest.mark.parametrize("more", [[], ["--lora", "2"]], ids=["all weights", "adapters"])
def test_weights_are_not_used_with_the_ids_of_another_tokenizer(place, capsys, tmp_path, more):
    """The same number of tokens, which stand for other texts; nothing is prepared before that is said."""
    text, first, other = tmp_path / "text.txt", tmp_path / "first", tmp_path / "other.json"
    text.write_text("the owl saw the fox " * 200)
    assert run(["train", str(text), "-o", str(first), "--steps", "1", *SMALL]) == 0
    tokenizer = Tokenizer.load(find_tokenizer(first))
    description = copy.deepcopy(tokenizer.description)
    vocabulary = description["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    other.write_text(json.dumps(description))
    assert Tokenizer.load(other).vocab_size == tokenizer.vocab_size
    capsys.readouterr()
    tuned = ["train", str(text), "--steps", "1", "--from", str(first), *more]
    assert run([*tuned, "--tokenizer", str(other), "-o", str(tmp_path / "wrong")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"lm: the weights of {first} were learned with another tokenizer")
    assert said.count("\n") == 1
    assert not (tmp_path / "wrong").exists()
    assert run([*tuned, "--tokenizer", str(find_tokenizer(first)), "-o", str(tmp_path / "same")]) == 0


def test_weights_of_translators_are_not_used_with_other_tokenizers(pairs, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    tiny = ["--d-model", "16", "--n-layers", "1", "--n-encoder-layers", "1", "--n-heads", "1", "--vocab-size", "258"]
    steps = ["--steps", "1", "--warmup-steps", "1", "--bleu-sentences", "1"]
    first = tmp_path / "first"
    command = ["train", *pairs, *steps]
    assert run([*command, *tiny, "--separate-vocabularies", "-o", str(first)]) == 0
    of_source, of_target = (find_checkpoint(first) / name for name in (SOURCE_TOKENIZER, TOKENIZER))
    assert Tokenizer.load(of_source).vocab_size == Tokenizer.load(of_target).vocab_size
    capsys.readouterr()
    for wrong in (of_source, of_target):  # for both sides
        assert run([*command, "--from", str(first), "--tokenizer", str(wrong), "-o", str(tmp_path / "wrong")]) == 2
        assert "were learned with another tokenizer" in capsys.readouterr().err
    assert run([*command, "--from", str(first), "--tokenizer", str(first), "-o", str(tmp_path / "same")]) == 0


def test_commands_that_begin_together_have_folders_of_their_own(place, monkeypatch, tmp_path):
    """The second is started, and ends, while the first prepares its text."""
    monkeypatch.chdir(tmp_path)
    command, prepare = ["train", str(place / "text.txt"), "--steps", "2", *SMALL], TextCorpus.prepare

    def meanwhile(*arguments):
        monkeypatch.setattr(TextCorpus, "prepare", prepare)
        assert run(command) == 0
        return prepare(*arguments)

    monkeypatch.setattr(TextCorpus, "prepare", meanwhile)
    assert run(command) == 0
    assert sorted(path.parent.parent.name for path in tmp_path.glob("runs/*/checkpoints/step-2")) == [
        "text-tiny",
        "text-tiny-2",
    ]


def test_a_command_that_fails_leaves_no_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_bytes(b"\xff")
    assert run(["train", "text.txt", "--steps", "2", *SMALL]) == 1
    assert not (tmp_path / "runs").exists()
    (tmp_path / "runs").mkdir()
    assert run(["train", "text.txt", "--steps", "2", *SMALL]) == 1
    assert not list((tmp_path / "runs").iterdir())
