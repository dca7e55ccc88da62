"""A run is measured on what it held out, and text that it was trained on is recognised."""

import hashlib
import io
import json
import re
import shutil
import sys

import pytest

import lm
from cli.main import run
from lm.checkpoint import load_model
from lm.config.hardware import HardwareConfig
from lm.errors import InputError
from lm.evaluation.held_out import open_held_out
from lm.hardware import select_inference_hardware
from lm.run_folder import load_config
from lm.training.training_corpus import TrainingCorpus
from tests.cli.small_runs import make_run
from tests.golden.make_runs import RUNS

SMALL = {"d_model": 16, "n_layers": 1, "n_heads": 2, "context": 32, "steps": 1, "vocab_size": 300, "threads": 1}


@pytest.fixture(autouse=True)
def nothing_on_stdin(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))


@pytest.fixture
def among_runs(monkeypatch):
    """Runs name their data relative to this folder."""
    monkeypatch.chdir(RUNS)


@pytest.fixture(scope="module")
def documents() -> list[str]:
    """Each other than all, some with a line that would end a document in plain text, one of two tokens."""
    texts = [f"Owl {number} saw\n<|endoftext|>\nthe fox — {'äöü' * (number % 7)}." for number in range(150)]
    return [*texts, "No line end", "Two\n\n"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, documents):
    """A run on documents in JSON Lines, one on examples, and one on labels."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    rows = [{"prompt": f"Owl {number}? ", "completion": f"{number} foxes\n"} for number in range(60)]
    (folder / "examples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lm.train(folder / "texts.jsonl", out=folder / "text", **SMALL)
    lm.train(folder / "examples.jsonl", out=folder / "examples", **SMALL)
    rows = [{"text": f"The owl saw {number} foxes", "label": "odd" if number % 2 else "even"} for number in range(60)]
    (folder / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lm.train(folder / "labels.jsonl", out=folder / "labels", label_column="label", **SMALL)
    return folder


def loaded(folder):
    return load_model(folder, select_inference_hardware(HardwareConfig(threads=1)))


def held_out_file(folder):
    (file,) = open_held_out(loaded(folder)).files
    return file


def reported(capsys, *arguments) -> dict:
    assert run(["perplexity", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_held_out_documents_are_what_the_run_did_not_see(trained, documents):
    held_out = [record.text for record in held_out_file(trained / "text").records()]
    assert set(held_out) < set(documents)
    assert 5 < len(held_out) == len(set(held_out)) < 40
    assert any("<|endoftext|>" in text for text in held_out)


def test_without_a_file_the_held_out_split_is_scored_as_a_file_of_it_would_be(trained, tmp_path, capsys):
    for name in ("text", "examples"):
        held_out = held_out_file(trained / name)
        file = tmp_path / f"{name}.jsonl"
        file.write_bytes(held_out.path.read_bytes())
        split, same = reported(capsys, trained / name), reported(capsys, trained / name, file)
        assert split["files"][0].pop("file") == "held-out"
        assert same["files"][0].pop("file") == str(file)
        assert split == same
        assert split["total"]["documents"] == len(list(held_out.records()))
        assert lm.load(trained / name, threads=1).perplexity().nats == pytest.approx(split["total"]["nats"])


@pytest.mark.parametrize("name", ["syntax", "one-stack"])
def test_held_out_pairs(among_runs, tmp_path, capsys, name):
    pairs = list(held_out_file(RUNS / name).records())
    known = list(zip(*((RUNS / f"numbers.{side}").read_text().splitlines() for side in ("en", "de")), strict=True))
    assert {(pair.source, pair.text) for pair in pairs} <= {*known, *[(b, a) for a, b in known]}
    files = [tmp_path / f"test.{side}" for side in ("source", "target", "heads")]
    for file, lines in zip(files, zip(*((pair.source, pair.text) for pair in pairs), strict=True), strict=False):
        file.write_text("".join(f"{line}\n" for line in lines))
    named = ["--source", files[0], "--target", files[1]]
    if pairs[0].dependency_heads:
        files[2].write_text("".join(" ".join(map(str, pair.dependency_heads)) + "\n" for pair in pairs))
        named += ["--dependency-heads", files[2]]
    split = reported(capsys, name)["total"]
    assert split == reported(capsys, name, *named)["total"]
    assert lm.load(name, threads=1).perplexity().nats == pytest.approx(split["nats"])


def test_a_run_that_held_nothing_out_or_whose_tokens_are_gone(among_runs, tmp_path, monkeypatch, capsys):
    assert run(["perplexity", "questions"]) == 1
    assert "this run held nothing out; name text to measure it on" in capsys.readouterr().err
    untrained = make_run(tmp_path / "untrained")
    with pytest.raises(InputError, match="not trained here, so nothing is held out; name text"):
        lm.load(untrained, threads=1).perplexity()
    gone = shutil.copytree(RUNS / "gpt", tmp_path / "gone")
    for path in gone.rglob("config.json"):
        config = json.loads(path.read_text())
        config["plan"]["data"] = "gone"
        path.write_text(json.dumps(config))
    for path in gone.rglob("manifest.json"):
        manifest = json.loads(path.read_text())
        digest = hashlib.sha256((path.parent / "config.json").read_bytes()).hexdigest()
        manifest.get("sha256", manifest)["config.json"] = digest
        path.write_text(json.dumps(manifest))
    assert run(["perplexity", str(gone)]) == 1
    said = capsys.readouterr().err
    assert "the prepared tokens of this run are gone; name text to measure it on, or prepare its corpus again" in said
    assert len(said.splitlines()) == 1


def warned(capsys, *arguments) -> list[str]:
    assert run(["perplexity", *map(str, arguments)]) == 0
    return [line.removeprefix("warning ") for line in capsys.readouterr().err.splitlines()]


def test_training_text_is_recognised_whatever_its_file_is_called(trained, documents, tmp_path, capsys):
    copy, half, new = (tmp_path / f"{name}.jsonl" for name in ("copy", "half", "new"))
    unseen = [f"Nothing like number {number}, of which no document has a line." for number in range(len(documents))]
    held_out = {record.text for record in held_out_file(trained / "text").records()}
    for file, texts in ((copy, documents), (half, [*documents, *unseen]), (new, [*unseen, *held_out])):
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[::-1]))
    said = warned(capsys, trained / "text", copy, half, new)
    checkpoint = trained / "text" / "checkpoints" / "step-1"
    expected = rf"{copy}: (8|9)\d% of it was training text of {checkpoint}; measure it on text that it has not seen"
    assert len(said) == 2
    assert re.fullmatch(expected, said[0])
    assert said[1].startswith(f"{half}: ")
    with pytest.warns(UserWarning, match="of it was training text of"):
        lm.load(trained / "text", threads=1).perplexity(copy)
    assert warned(capsys, trained / "text", new) == []


def test_held_out_text_that_the_base_run_was_trained_on_is_noticed(trained, documents, tmp_path):
    unseen = [f"Badger {number} dug\nfor {number * 7} worms in the wood." for number in range(120)]
    said = {}
    for name, texts, validation in (("again", documents, "0.3"), ("child", unseen, "0.1")):
        corpus = tmp_path / f"{name}.jsonl"
        corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        events = lm.train_events(
            lm.run_spec(
                corpus, from_run=trained / "text", out=tmp_path / name, steps=1, validation=validation, threads=1
            )
        )
        said[name] = [note for event in events if isinstance(event, TrainingCorpus) for note in event.notes]
        assert load_config(tmp_path / name).origin == "from text"
    (warning,) = [text for text in said["again"] if "held-out" in text]
    assert re.search(r"the held-out text: \d\d% of it was training text of .*text, so the validation loss", warning)
    assert [text for text in said["child"] if "held-out" in text] == []


@pytest.mark.parametrize(
    "command", ["perplexity RUN --pairs FILE", "evaluate RUN --pairs FILE --set translation.max_length_extra=1"]
)
def test_training_pairs_are_recognised(trained, tmp_path, capsys, command):
    if not (trained / "pairs").exists():
        rows = [f"The owl saw {number} foxes.\tDie Eule sah {number} Füchse.\n" for number in range(60)]
        (trained / "pairs.tsv").write_text("".join(rows))
        lm.train(pairs=trained / "pairs.tsv", out=trained / "pairs", n_encoder_layers=1, **SMALL)
    (tmp_path / "new.tsv").write_text("".join(f"The fox saw {n} owls.\tDer Fuchs sah {n} Eulen.\n" for n in range(60)))
    for file in (trained / "pairs.tsv", tmp_path / "new.tsv"):
        arguments = command.replace("RUN", str(trained / "pairs")).replace("FILE", str(file)).split()
        assert run(arguments) == 0
        said = [line for line in capsys.readouterr().err.splitlines() if "was training text" in line]
        expected = rf"warning {re.escape(str(file))}: 9\d% of it was training text of .*pairs/checkpoints/step-1; "
        assert [bool(re.match(expected, line)) for line in said] == [True] * (file.name == "pairs.tsv")


def test_a_classifier_is_scored_on_what_it_held_out_and_warned_about_training_examples(trained, tmp_path, capsys):
    folder = trained / "labels"
    held_out = held_out_file(folder)
    (tmp_path / "split.jsonl").write_bytes(held_out.path.read_bytes())
    reports = []
    for files in ([], [tmp_path / "split.jsonl"], [trained / "labels.jsonl"]):
        assert run(["evaluate", str(folder), *map(str, files), "--json"]) == 0
        captured = capsys.readouterr()
        reports.append(json.loads(captured.out))
        assert ("of it was training text of" in captured.err) == (reports[-1]["examples"] == 60)
    assert reports[0] == reports[1] != reports[2]
    assert 0 < reports[0]["examples"] < 20
    assert lm.load(folder, threads=1).evaluate().confusion.tolist() == reports[0]["confusion"]["matrix"]
    assert run(["evaluate", str(folder)]) == 0
    assert f"{reports[0]['examples']} held-out examples" in capsys.readouterr().out
    assert run(["classify", str(folder), str(trained / "labels.jsonl")]) == 0
    assert "of it was training text of" in capsys.readouterr().err
