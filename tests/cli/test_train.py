"""`lm train`: where a run begins, with which tokens, and how it is resumed."""

import copy
import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from cli.main import run
from lm.run_folder import find_tokenizer
from lm.tokenizer.tokenizer import Tokenizer
from lm.training import run_summaries
from lm.training.training_corpus import CorpusFiles
from tests.system.conftest import SMALL
from tests.tolerances import approx


def test_without_out_the_run_gets_a_name_of_its_own(place, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert run(["train", str(place / "text.txt"), "--steps", "2", *SMALL]) == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["text-tiny", "text-tiny-2"]


def test_weights_are_not_used_with_the_ids_of_another_tokenizer(tmp_path):
    """The same number of tokens, which stand for other texts; nothing is prepared before that is said."""
    text, first, other = tmp_path / "text.txt", tmp_path / "first", tmp_path / "other.json"
    text.write_text("the owl saw the fox " * 200)
    assert run(["train", str(text), "-o", str(first), "--steps", "1", *SMALL]) == 0
    tokenizer = Tokenizer.load(find_tokenizer(first))
    description = copy.deepcopy(tokenizer.description)
    vocabulary = description["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    other.write_text(json.dumps(description))
    tuned = ["train", str(text), "--steps", "1", "--from", str(first)]
    assert run([*tuned, "--tokenizer", str(other), "-o", str(tmp_path / "wrong")]) == 2
    assert not (tmp_path / "wrong").exists()
    assert run([*tuned, "--tokenizer", str(find_tokenizer(first)), "-o", str(tmp_path / "same")]) == 0


def test_commands_that_begin_together_have_folders_of_their_own(place, monkeypatch, tmp_path):
    """The second is started, and ends, while the first prepares its text."""
    monkeypatch.chdir(tmp_path)
    command, prepare = ["train", str(place / "text.txt"), "--steps", "2", *SMALL], CorpusFiles.prepare

    def meanwhile(*arguments):
        monkeypatch.setattr(CorpusFiles, "prepare", prepare)
        assert run(command) == 0
        return prepare(*arguments)

    monkeypatch.setattr(CorpusFiles, "prepare", meanwhile)
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


def test_prepared_tokens_are_a_corpus_for_a_run_with_their_tokenizer(place, tmp_path):
    tokens, first, shape = str(tmp_path / "tokens"), tmp_path / "first", SMALL[:-2]
    assert run(["prepare", str(place / "text.txt"), "-o", tokens, "--tokenizer", "char"]) == 0
    assert run(["train", tokens, "-o", str(first), "--steps", "1", *shape]) == 0
    flags = (["--from", str(first)], ["--tokenizer", str(first), *shape], ["--tokenizer", tokens, *shape])
    for number, given in enumerate(flags):
        assert run(["train", tokens, "-o", str(tmp_path / f"run-{number}"), "--steps", "1", *given]) == 0
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
        assert capsys.readouterr().err.splitlines()[-1].startswith(f"lm: {shard}: damaged")
    assert not (tmp_path / "run").exists()
    assert run(["train", str(place / "text.txt"), "--resume", begun, "--steps", "2"]) == 0


def test_damaged_tokens_in_the_cache_are_made_again(place, tmp_path, monkeypatch):
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    command = ["train", str(place / "text.txt"), "--steps", "2", *SMALL]
    assert run([*command, "-o", str(tmp_path / "first")]) == 0
    (shard,) = (tmp_path / "cache").rglob("train-tokens.npy")
    before = shard.read_bytes()
    np.save(shard, np.zeros_like(np.load(shard)))
    assert run([*command, "-o", str(tmp_path / "second")]) == 0
    assert shard.read_bytes() == before
    first, second = ((tmp_path / name / "metrics.jsonl").read_text() for name in ("first", "second"))
    assert first == second


def test_a_run_knows_how_its_prepared_tokens_were_made(place, capsys, tmp_path):
    words = (place / "text.txt").read_text().split("\n")
    (tmp_path / "text.txt").write_text("\n%%\n".join(words[:200]))
    (tmp_path / "held.txt").write_text("\n%%\n".join(words[200:263]))
    tokens, held_out = str(tmp_path / "tokens"), str(tmp_path / "held.txt")
    made_with = ["--set", "data.separator=%%", "--validation", held_out]
    assert run(["prepare", str(tmp_path / "text.txt"), "-o", tokens, "--tokenizer", "byte", *made_with]) == 0
    assert run(["train", tokens, "-o", str(tmp_path / "run"), "--steps", "1", *SMALL[:-2]]) == 0
    data = json.loads((tmp_path / "run" / "config.json").read_text())["data"]
    assert (data["separator"], data["validation"]) == ("%%", held_out)
    capsys.readouterr()
    assert run(["perplexity", str(tmp_path / "run"), held_out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"]["documents"] == 63


def test_resume_alone_continues_with_the_newest_unfinished_run(place, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name, steps in (("old", "4"), ("new", "4"), ("done", "2")):
        assert run(["train", str(place / "text.txt"), "-o", f"runs/{name}", "--steps", steps, *SMALL]) == 0
        state = tmp_path / "runs" / name / "checkpoints" / f"step-{steps}" / "state.json"
        if name != "done":
            unfinish(state)
    assert run(["train", "--resume", "--steps", "6"]) == 0
    assert (tmp_path / "runs/new/last").read_text() == "step-6\n"
    assert (tmp_path / "runs/old/last").read_text() == "step-4\n"


def test_a_checkpoint_is_resumed_in_a_new_run(place, tmp_path):
    text, first, again = str(place / "text.txt"), tmp_path / "first", tmp_path / "again"
    command = ["train", text, "-o", str(first), "--steps", "4", "--evaluate-every", "2", *SMALL]
    assert run(command) == 0
    resume = ["train", "--resume", str(first / "checkpoints" / "step-2")]
    assert run(resume) == 2
    assert run([*resume, "-o", str(again)]) == 0
    assert (again / "metrics.jsonl").read_bytes() == (first / "metrics.jsonl").read_bytes()


def unfinish(state: Path) -> None:
    """Make a checkpoint look as if more steps had been planned."""
    state.write_text(state.read_text().replace('"finished": true', '"finished": false'))
    manifest = state.with_name("manifest.json")
    sums = json.loads(manifest.read_text())
    sums["sha256"]["state.json"] = hashlib.sha256(state.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(sums))


def test_a_run_whose_tokens_are_gone_takes_its_corpus_again_and_no_other(place):
    text, folder = place / "gone.txt", place / "gone"
    text.write_text((place / "text.txt").read_text() + "\nseven")
    assert run(["train", str(text), "-o", str(folder), "--steps", "2", *SMALL]) == 0
    shutil.rmtree(json.loads((folder / "config.json").read_text())["plan"]["data"])
    for corpus, code in (([], 1), ([str(place / "text.txt")], 1), ([str(text)], 0)):
        assert run(["train", *corpus, "--resume", str(folder), "--steps", "4"]) == code


def test_the_summary_says_whether_training_improved_what_it_began_with(place, capsys, tmp_path):
    command = ["train", str(place / "text.txt"), "--from", str(place / "run"), "-o", str(tmp_path / "run"), "--json"]
    capsys.readouterr()
    assert run([*command, "--learning-rate", "0", "--steps", "2"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["best_step"], summary["improved"]) == (0, False)


def test_stdout_has_only_what_is_asked_for(place, tmp_path, capsys):
    folder = tmp_path / "my run"
    assert run(["train", str(place / "text.txt"), "-o", str(folder), "--steps", "5", "--json", *SMALL]) == 0
    output = capsys.readouterr()
    summary = json.loads(output.out)
    assert (summary["run"], summary["steps"], summary["finished"]) == (str(folder), 5, True)
    assert summary["best_step"] == 5
    assert "\x1b" not in output.err
    assert "validation loss" in output.err
    assert f"next    lm generate '{folder}' \"...\"\n" in output.err
    assert run(["train", "--resume", str(folder), "--steps", "6"]) == 0
    assert capsys.readouterr().out == ""


CURVES = (
    "loss", "nll", "learning_rate", "gradient_norm", "tokens_per_second", "validation_loss",
    "validation_bits_per_byte",
)  # fmt: skip
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
    events, log = read(folder), run_summaries.load_curves(folder)
    assert set(events.Tags()["scalars"]) == set(CURVES)
    for name in CURVES:
        shown = events.Scalars(name)
        assert [event.step for event in shown] == log[name].steps
        assert [event.value for event in shown] == approx(log[name].values, terms=1)


def test_curves_and_samples_are_those_of_the_log(train):
    folder = train("--set", "training.tensorboard=true")
    assert_equals_the_log(folder)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    samples = [line["sample"] for line in lines if "sample" in line]
    shown = read(folder).Tensors("sample/the fox/text_summary")
    assert len(samples) == len(shown) == 3
    texts = [event.tensor_proto.string_val[0].decode() for event in shown]
    assert texts == ["".join(f"    {line}\n" for line in sample.split("\n")) for sample in samples]


def test_a_resumed_run_continues_with_it(train):
    folder = train("--set", "training.tensorboard=true")
    assert run(["train", "--resume", str(folder), "--steps", "8"]) == 0
    assert [event.step for event in read(folder).Scalars("loss")] == list(range(1, 9))
    assert_equals_the_log(folder)
