"""A run is measured on what it held out, and text that it was trained on is recognised."""

import io
import json
import re
import sys

import pytest

import lm
from cli.main import run
from lm.checkpoint import load_model
from lm.config.run_config import HardwareConfig
from lm.errors import InputError, UsageError
from lm.evaluation.perplexity import open_held_out
from lm.hardware import select_hardware
from lm.run_folder import load_config
from lm.training.training_corpus import TrainingCorpus
from tests.cli.small_runs import make_run
from tests.tiny_runs import RUNS

SMALL = {"d_model": 16, "n_layers": 1, "n_heads": 2, "context": 32, "steps": 1, "vocab_size": 300, "threads": 1}


@pytest.fixture(autouse=True)
def nothing_on_stdin(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))


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
    return folder


def loaded(folder):
    return load_model(folder, select_hardware(HardwareConfig(threads=1)))


def held_out_file(folder):
    (file,) = open_held_out(loaded(folder)).files
    return file


def reported(capsys, *arguments) -> dict:
    assert run(["perplexity", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_held_out_documents_are_those_of_the_corpus(trained, documents, tmp_path):
    """Whatever their tokens say of them."""
    lm.train(trained / "texts.jsonl", out=tmp_path / "run", tokenizer="char", **{**SMALL, "vocab_size": None})
    for folder in (trained / "text", tmp_path / "run"):
        assert {record.text for record in held_out_file(folder).records()} < set(documents)


def test_without_a_file_the_held_out_split_is_scored_as_a_file_of_it_would_be(trained, tmp_path, capsys):
    for name in ("text", "examples"):
        held_out = held_out_file(trained / name)
        file = tmp_path / f"{name}.jsonl"
        file.write_text("".join(record.to_json() + "\n" for record in held_out.records()))
        split, same = reported(capsys, trained / name), reported(capsys, trained / name, file)
        assert split["files"][0].pop("file") == "held-out"
        assert same["files"][0].pop("file") == str(file)
        assert split == same
        assert split["total"]["documents"] == len(list(held_out.records()))
        assert lm.load(trained / name, threads=1).perplexity().nats == pytest.approx(split["total"]["nats"])


@pytest.mark.parametrize("name", ["syntax", "one-stack"])
def test_held_out_pairs(monkeypatch, tmp_path, capsys, name):
    monkeypatch.chdir((RUNS / name).parent)  # where its data are named from
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


def test_what_was_held_out_is_of_the_kind_that_is_scored(trained):
    with pytest.raises(UsageError, match="holds out text, not examples"):
        lm.load(trained / "text").evaluate(labels=trained / "examples.jsonl")
    (trained / "labels.jsonl").write_text("".join(f'{{"text": "Owl {n}", "label": "{n % 2}"}}\n' for n in range(60)))
    lm.train(trained / "labels.jsonl", out=trained / "labels", label_column="label", objective="masked", **SMALL)
    with pytest.raises(UsageError, match="does not score examples"):
        lm.load(trained / "labels").perplexity()


def test_stdin_is_left_to_others(trained, monkeypatch, capsys):
    """As in a loop over the lines of a list."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"runs/other\n")))
    for command in ("perplexity", "evaluate"):
        assert run([command, str(trained / "text")]) == 0
        assert "held-out" in capsys.readouterr().out
    assert sys.stdin.read() == "runs/other\n"


def test_a_run_that_held_nothing_out_or_was_not_trained(tmp_path, capsys):
    assert run(["perplexity", str(RUNS / "questions")]) == 1
    assert "this run held nothing out; name text to measure it on" in capsys.readouterr().err
    untrained = make_run(tmp_path / "untrained")
    with pytest.raises(InputError, match="not trained here, so nothing is held out; name text"):
        lm.load(untrained, threads=1).perplexity()


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
    (line,) = said
    assert re.fullmatch(rf"{copy} \([89]\d%\), {half} \(\d\d%\): training text of {checkpoint}; .*", line)
    with pytest.warns(UserWarning, match="training text of"):
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
    assert re.match(r"\d\d% of the held-out text was training text of .*text: ", warning)
    assert [text for text in said["child"] if "held-out" in text] == []


def test_training_pairs_are_recognised(trained, tmp_path, capsys):
    rows = [f"The owl saw {number} foxes.\tDie Eule sah {number} Füchse.\n" for number in range(60)]
    (trained / "pairs.tsv").write_text("".join(["source\ttarget\n", *rows]))
    lm.train(trained / "pairs.tsv", out=trained / "pairs", n_encoder_layers=1, **SMALL)
    (tmp_path / "new.tsv").write_text(
        "en\tde\n" + "".join(f"The fox saw {n} owls.\tDer Fuchs sah {n} Eulen.\n" for n in range(60))
    )
    for file in (trained / "pairs.tsv", tmp_path / "new.tsv"):
        said = warned(capsys, trained / "pairs", file)
        assert [bool(re.match(rf"{file} \(9\d%\): training", line)) for line in said] == [True] * (
            file.name == "pairs.tsv"
        )
