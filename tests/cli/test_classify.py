"""`lm classify` and `lm evaluate` on classifiers, by a masked model and by decoders."""

import io
import json
import sys
from collections import Counter

import pytest

import lm
from lm.config.run_config import DataConfig
from tests.cli.small_runs import make_run

TEXTS = ["the owl", "the fox ran", "Über den Bäumen", "mill", "the owl sang", "a fox"]
LABELS = ["joy", "fear", "joy", "anger", "fear", "joyful"]
LABELLED = DataConfig(label_column="label")
COMPLETIONS = ("\nfear", "\njoy", "\njoyful")
KINDS = {
    "masked": {"objective": "masked", "labels": ("fear", "joy", "joyful")},
    "decoder": {"data_kind": "examples", "label_completions": COMPLETIONS},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of each kind, texts line by line, and the same with labels, of which one is none of the runs'."""
    folder = tmp_path_factory.mktemp("labels")
    for name, fields in KINDS.items():
        make_run(folder / name, data=LABELLED, **fields)
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS, strict=True)]
    (folder / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    (folder / "labelled.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(autouse=True)
def in_the_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_each_line_is_a_label_and_its_probability_and_json_has_all_of_them(succeed, folder, kind):
    found = list(lm.load(folder / kind).classify(TEXTS))
    lines = succeed("classify", kind, "texts.txt").splitlines()
    assert lines == [f"{each.label}\t{each.probabilities[each.label]:.4f}" for each in found]
    records = map(json.loads, succeed("classify", kind, "texts.txt", "--json", "--top-k", 2).splitlines())
    for record, each in zip(records, found, strict=True):
        assert (record["text"], record["label"]) == (each.text, each.label)
        assert list(record["probabilities"].items()) == list(each.probabilities.items())[:2]


def test_an_empty_text_has_its_line_too(succeed, folder):
    (folder / "gaps.csv").write_text("text,id\nthe owl,1\n,2\nthe fox,3\n")
    found = [json.loads(line)["text"] for line in succeed("classify", "masked", "gaps.csv", "--json").splitlines()]
    assert found == ["the owl", "", "the fox"]


def test_stdin_and_several_files_are_read(succeed, monkeypatch):
    whole = succeed("classify", "decoder", "texts.txt", "labelled.jsonl")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("".join(f"{text}\n" for text in TEXTS).encode())))
    assert succeed("classify", "decoder") * 2 == whole


@pytest.mark.parametrize("kind", KINDS)
def test_the_report_counts_what_classify_says(succeed, folder, kind):
    guesses = [line.split("\t")[0] for line in succeed("classify", kind, "labelled.jsonl").splitlines()]
    report = json.loads(succeed("evaluate", kind, "labelled.jsonl", "--json"))
    pairs = Counter(zip(LABELS, guesses, strict=True))
    assert report["unknown"] == {"anger": 1}
    matrix, labels = report["confusion"], [each["label"] for each in report["labels"]]
    for row, label in enumerate(labels):
        assert matrix[row] == [pairs[label, guess] for guess in labels]
    scores = lm.load(folder / kind).evaluate(folder / "labelled.jsonl")
    assert (scores.accuracy, scores.macro_f1) == (report["accuracy"], report["macro_f1"])
