"""Sentence pairs and examples are scored as they were trained: targets given sources, completions given prompts."""

import json
import math

import pytest

from cli.main import run
from tests.cli.small_runs import make_run
from tests.cli.toy_translation import pairs


@pytest.fixture
def files(tmp_path):
    """A source file and its targets, right and wrong."""
    known = pairs(20, seed=777)
    (tmp_path / "test.en").write_text("".join(f"{source}\n" for source, _ in known))
    (tmp_path / "test.de").write_text("".join(f"{target}\n" for _, target in known))
    wrong = [" ".join(reversed(target.split())) for _, target in known]
    (tmp_path / "wrong.de").write_text("".join(f"{target}\n" for target in wrong))
    return tmp_path


def test_right_translations_are_expected_and_wrong_ones_are_not(report, translation_run, files):
    right = report(translation_run, "--source", files / "test.en", "--target", files / "test.de")["total"]
    wrong = report(translation_run, "--source", files / "test.en", "--target", files / "wrong.de")["total"]
    assert right["nats_per_token"] < 0.2
    assert wrong["nats_per_token"] > 2
    assert right["nats_per_token"] == pytest.approx(right["nats"] / right["tokens"])
    assert right["perplexity"] == pytest.approx(math.exp(right["nats_per_token"]))
    assert right["pairs"] == 20
    assert right["bytes"] == len((files / "test.de").read_bytes()) - 20


def test_pairs_of_one_file_are_those_of_two(report, translation_run, files):
    sides = [(files / name).read_text().splitlines() for name in ("test.en", "test.de")]
    (files / "test.csv").write_text("de,en\n" + "".join(f"{b},{a}\n" for a, b in zip(*sides, strict=True)))
    in_two = report(translation_run, "--source", files / "test.en", "--target", files / "test.de")
    columns = ["--source-column", "en", "--target-column", "de"]
    assert report(translation_run, "--pairs", files / "test.csv", *columns)["total"] == in_two["total"]


def test_files_are_reported_apart_and_in_total(report, capsys, translation_run, files):
    twice = ["--source", files / "test.en", "--target", files / "test.de", "--source", files / "copy.en"]
    (files / "copy.en").write_text((files / "test.en").read_text() + "\n")
    (files / "wrong.de").write_text((files / "wrong.de").read_text() + "one\n")
    found = report(translation_run, *twice, "--target", files / "wrong.de")
    assert [file["file"] for file in found["files"]] == [str(files / "test.de"), str(files / "wrong.de")]
    assert [file["blank"] for file in found["files"]] == [0, 1]
    for name in ("nats", "tokens", "pairs", "words", "bytes", "blank"):
        assert found["total"][name] == pytest.approx(sum(file[name] for file in found["files"]))
    assert run(["perplexity", str(translation_run), *map(str, twice), "--target", str(files / "wrong.de")]) == 0
    output = capsys.readouterr()
    heading, *rows, _ = output.out.splitlines()
    assert "nats/token" in heading
    for row, figures in zip(rows, [*found["files"], {**found["total"], "file": "total"}], strict=True):
        counts = [f"{figures[name]:,}" for name in ("pairs", "tokens", "words")]
        rates = [f"{figures[name]:.4f}" for name in ("nats_per_token", "standard_error")]
        rates += [f"{figures[name]:,.3f}" for name in ("perplexity", "word_perplexity")]
        assert row.split() == [figures["file"], *counts, *rates, f"{figures['bits_per_byte']:.4f}"]
    assert output.err == "1 pair with a blank side left out\n"


def test_the_pairs_before_a_file_that_cannot_be_scored_are_reported_without_a_total(translation_run, files, capsys):
    (files / "short.de").write_text("one\n")
    (files / "copy.en").write_bytes((files / "test.en").read_bytes())
    good = ["--source", str(files / "test.en"), "--target", str(files / "test.de")]
    assert run(["perplexity", str(translation_run), *good]) == 0
    whole = capsys.readouterr().out
    bad = ["--source", str(files / "copy.en"), "--target", str(files / "short.de")]
    assert run(["perplexity", str(translation_run), *good, *bad]) == 1
    output = capsys.readouterr()
    assert output.out == whole
    assert "short.de" in output.err


EXAMPLES = [("The owl saw", " the fox"), ("狐", " by the mill"), ("", "ran")]


@pytest.fixture(scope="module")
def supervised(tmp_path_factory):
    """A run that learns from examples."""
    return make_run(tmp_path_factory.mktemp("runs") / "supervised", supervised=True)


@pytest.fixture
def examples(tmp_path):
    lines = [json.dumps({"prompt": prompt, "completion": completion}) + "\n" for prompt, completion in EXAMPLES]
    (tmp_path / "examples.jsonl").write_text("".join(lines))
    return tmp_path / "examples.jsonl"


def test_the_examples_before_a_file_that_cannot_be_read_are_reported_without_a_total(supervised, examples, capsys):
    (examples.parent / "wrong.jsonl").write_text(
        '{"prompt": "a", "completion": "b"}\n{"prompt": 1, "completion": "b"}\n'
    )
    assert run(["perplexity", str(supervised), str(examples)]) == 0
    whole = capsys.readouterr().out
    assert run(["perplexity", str(supervised), str(examples), str(examples.parent / "wrong.jsonl")]) == 1
    output = capsys.readouterr()
    assert output.out == whole
    assert "wrong.jsonl: line 2: field 'prompt' is not text but a number" in output.err


def test_the_report_tells_examples_from_text(report, supervised, tmp_path, capsys):
    labels = tmp_path / "labels.jsonl"
    labels.write_text((json.dumps({"text": "the owl.", "label": "fox"}) + "\n") * 3)
    assert run(["perplexity", str(supervised), str(labels)]) == 0
    assert "of the completions" in " ".join(capsys.readouterr().out.split())
    total = report(supervised, labels, "--text-column", "text")["total"]
    assert (total["documents"], total["bytes"]) == (3, 24)
