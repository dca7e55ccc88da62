"""A new run has a folder of its own; its tokens are prepared once, and it knows how."""

import copy
import json

import numpy as np
import pytest

from cli.main import run
from lm.locks import LockFile
from lm.run_folder import SOURCE_TOKENIZER, TOKENIZER, find_checkpoint, find_tokenizer
from lm.tokenizer.tokenizer import Tokenizer
from lm.training.training_corpus import TextCorpus
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


def test_a_second_run_reuses_the_tokens(place, capsys):
    assert run(["train", str(place / "text.txt"), "-o", str(place / "again"), "--steps", "2", *SMALL]) == 0
    assert "made before" in capsys.readouterr().err


def test_prepared_tokens_are_a_corpus_for_a_run_with_their_tokenizer(place, capsys, tmp_path):
    tokens, first, shape = str(tmp_path / "tokens"), tmp_path / "first", SMALL[:-2]
    assert run(["prepare", str(place / "text.txt"), "-o", tokens, "--kind", "char"]) == 0
    assert run(["train", tokens, "-o", str(first), "--steps", "1", *shape]) == 0
    flags = (["--from", first], ["--tokenizer", first, *shape], ["--tokenizer", tokens, *shape])
    for number, given in enumerate(flags):
        command = ["train", tokens, "-o", str(tmp_path / f"run-{number}"), "--steps", "1", *map(str, given)]
        assert run(command) == 0, capsys.readouterr().err
    assert run(["train", tokens, "--resume", str(first), "--steps", "2"]) == 0, capsys.readouterr().err


def test_damaged_tokens_are_named_and_not_trained_on(place, capsys, tmp_path):
    """In a folder that is named, and in that of a resumed run."""
    tokens, begun = tmp_path / "tokens", str(tmp_path / "begun")
    assert run(["prepare", str(place / "text.txt"), "-o", str(tokens), "--kind", "byte"]) == 0
    assert run(["train", str(tokens), "-o", begun, "--steps", "1", *SMALL[:-2]]) == 0
    shard = tokens / "train-00000.npy"
    np.save(shard, np.zeros_like(np.load(shard)))
    capsys.readouterr()
    assert run(["train", str(tokens), "-o", str(tmp_path / "run"), "--steps", "1", *SMALL[:-2]]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"lm: {shard}: damaged")
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()
    assert run(["train", "--resume", begun, "--steps", "2"]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"lm: {shard}: damaged")
    assert said.endswith(f"name its corpus again (--resume {begun})")
    assert run(["train", str(place / "text.txt"), "--resume", begun, "--steps", "2"]) == 0


def test_damaged_tokens_in_the_cache_are_made_again(place, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    command = ["train", str(place / "text.txt"), "--steps", "2", *SMALL]
    assert run([*command, "-o", str(tmp_path / "first")]) == 0
    (shard,) = (tmp_path / "cache").glob("tokens/*/train-00000.npy")
    before = shard.read_bytes()
    np.save(shard, np.zeros_like(np.load(shard)))
    assert run([*command, "-o", str(tmp_path / "second")]) == 0
    assert shard.read_bytes() == before
    first, second = ((tmp_path / name / "metrics.jsonl").read_text() for name in ("first", "second"))
    assert first == second


def test_another_tokenizer_than_that_of_prepared_tokens_is_refused(place, capsys, tmp_path):
    tokens, other, shape = str(tmp_path / "tokens"), str(tmp_path / "other"), SMALL[:-2]
    assert run(["prepare", str(place / "text.txt"), "-o", tokens, "--kind", "char"]) == 0
    assert run(["train", str(place / "text.txt"), "-o", other, "--steps", "1", "--kind", "byte", *shape]) == 0
    capsys.readouterr()
    for flag in ("--tokenizer", "--from"):
        assert run(["train", tokens, "-o", str(tmp_path / "run"), "--steps", "1", flag, other]) == 1
        said = capsys.readouterr().err.splitlines()[-1]
        assert said.startswith(f"lm: {other}: not the tokenizer that made the tokens in {tokens}")
        assert f"prepare the corpus with {other}" in said


def test_a_small_vocabulary_is_explained_only_where_it_was_made(place, capsys):
    tokens, said = str(place / "small-tokens"), "no more pairs occur often enough"
    assert run(["prepare", str(place / "text.txt"), "-o", tokens, "--vocab-size", "260"]) == 0
    shape = SMALL[:-2]
    assert run(["train", tokens, "-o", str(place / "small"), "--steps", "2", *shape]) == 0
    assert said not in capsys.readouterr().err
    assert run(["train", str(place / "text.txt"), "-o", str(place / "bpe"), "--steps", "2", *shape]) == 0
    assert said in capsys.readouterr().err


def test_a_run_knows_how_its_prepared_tokens_were_made(place, capsys, tmp_path, monkeypatch):
    words = (place / "text.txt").read_text().split("\n")
    (tmp_path / "text.txt").write_text("\n%%\n".join(words[:200]))
    (tmp_path / "held.txt").write_text("\n%%\n".join(words[200:263]))
    made_with = ["--separator", "%%", "--validation", str(tmp_path / "held.txt"), "--text-column", "body"]
    tokens, shape = str(tmp_path / "tokens"), SMALL[:-2]
    monkeypatch.setenv("LM_TEXT_COLUMN", "body")  # typed, it would be refused: there are no rows
    assert run(["prepare", str(tmp_path / "text.txt"), "-o", tokens, "--kind", "byte", *made_with[:-2]]) == 0
    monkeypatch.delenv("LM_TEXT_COLUMN")
    for name, flags in (("silent", []), ("agreeing", made_with)):
        assert run(["train", tokens, "-o", str(tmp_path / name), "--steps", "1", *shape, *flags]) == 0
        data = json.loads((tmp_path / name / "config.json").read_text())["data"]
        made = {"separator": "%%", "validation": made_with[3], "text_column": "body", "supervised": False}
        assert data == made | {"label_column": None, "keep_line_ends": False, "strip_gutenberg": False}
    capsys.readouterr()
    assert run(["perplexity", str(tmp_path / "silent"), str(tmp_path / "held.txt"), "--per-token"]) == 0
    documents = {json.loads(line)["document"] for line in capsys.readouterr().out.splitlines()}
    assert len(documents) == 63


@pytest.mark.parametrize("flags", [("--separator", "%%"), ("--validation", "0.2"), ("--text-column", "body")])
def test_flags_that_contradict_prepared_tokens_are_refused(place, capsys, tmp_path, monkeypatch, flags):
    tokens = str(tmp_path / "tokens")
    assert run(["prepare", str(place / "text.txt"), "-o", tokens, "--kind", "byte"]) == 0
    capsys.readouterr()
    assert run(["train", tokens, "-o", str(tmp_path / "run"), "--steps", "1", *SMALL[:-2], *flags]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"({flags[0]})" in said
    assert not (tmp_path / "run").exists()
    monkeypatch.setenv("LM_" + flags[0][2:].upper().replace("-", "_"), flags[1])  # of other corpora
    assert run(["train", tokens, "-o", str(tmp_path / "run"), "--steps", "1", *SMALL[:-2]]) == 0


def test_the_environment_may_speak_of_both_kinds_of_corpus(place, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("LM_BPE_DROPOUT", "0.1")
    flags = ["--steps", "1", "--best-by", "loss", *SMALL]
    assert run(["train", str(place / "text.txt"), "-o", str(tmp_path / "run"), *flags]) == 0
