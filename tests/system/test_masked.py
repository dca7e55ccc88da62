"""Masked models from the command line: trained, resumed, asked to fill and to score, and made classifiers."""

import io
import json
import random
from pathlib import Path

import pytest

from cli.main import run
from tests.tolerances import approx

SHAPE = ["--d-model", "32", "--n-heads", "2", "--n-layers", "2", "--context", "32", "--vocab-size", "300"]
MACHINE = ["--threads", "1", "--device", "cpu", "--dtype", "float32"]
WORDS = {"joy": ["sun", "song", "smile"], "fear": ["storm", "night", "wolf"]}


def sentence(draw: random.Random, label: str) -> str:
    return f"The {draw.choice(WORDS[label])} and the {draw.choice(WORDS[label])} were here."


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A masked model and a classifier made of it, and what they learned from."""
    folder, draw = tmp_path_factory.mktemp("masked"), random.Random(1)
    labels = [draw.choice(list(WORDS)) for _ in range(300)]
    texts = [sentence(draw, label) for label in labels]
    lines = [json.dumps({"text": text, "label": label}) for text, label in zip(texts, labels, strict=True)]
    (folder / "text.txt").write_text("\n".join(texts) + "\n")
    (folder / "labels.jsonl").write_text("\n".join(lines[:250]) + "\n")
    (folder / "held-out.jsonl").write_text("\n".join(lines[250:]) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LM_CACHE", str(folder / "cache"))
        command = [
            "train", str(folder / "text.txt"), "-o", str(folder / "lm"), "--objective", "masked", *SHAPE, *MACHINE,
        ]  # fmt: skip
        sample = ["--sample", "The [MASK] and the wolf"]
        assert run([*command, "--steps", "4", "--evaluate-every", "2", "--set", "training.ema=0.9", *sample]) == 0
        command = [
            "train",
            str(folder / "labels.jsonl"),
            "--label-column",
            "label",
            "--from",
            str(folder / "lm"),
            *MACHINE,
        ]
        options = ["--steps", "60", "--learning-rate", "5e-3", "--evaluate-every", "30"]
        assert run([*command, *options, "-o", str(folder / "labels")]) == 0
    return folder


def test_blanks_are_filled_in_a_table_or_in_json(folder, tmp_path, capsys, monkeypatch):
    command = ["fill", str(folder / "lm")]
    assert run([*command, "The [MASK] and the [MASK] were here.", "--top-k", "2"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == ["line", "blank", "guess", "probability"]
    assert [line.split()[1] for line in table[1:5]] == ["1", "1", "2", "2"]
    assert table[5].startswith("The")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"The [MASK]\nno blank\n[MASK] and [MASK]\n")))
    assert run([*command, "--json", "--top-k", "3"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [len(each["blanks"]) for each in found] == [1, 0, 2]
    assert all(len(guesses) == 3 for each in found for guesses in each["blanks"])
    assert [each["text"] for each in found] == ["The [MASK]", "no blank", "[MASK] and [MASK]"]


def test_pseudo_perplexity_is_said_to_be_one(folder, capsys):
    (folder / "short.txt").write_text((folder / "text.txt").read_text()[:500])
    assert run(["perplexity", str(folder / "lm"), str(folder / "short.txt"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["unit"], report["context"]) == ("masked token", 32)
    assert report["total"]["bits_per_byte"] > 0


def test_texts_are_labelled(folder, capsys):
    assert run(["classify", str(folder / "labels"), str(folder / "held-out.jsonl")]) == 0
    out = capsys.readouterr().out
    expected = [json.loads(line)["label"] for line in (folder / "held-out.jsonl").read_text().splitlines()]
    found = [line.split("\t")[0] for line in out.splitlines()]
    assert sum(one == other for one, other in zip(found, expected, strict=True)) > 40
    assert run(["classify", str(folder / "labels"), str(folder / "text.txt"), "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(found) == 300
    assert all(sum(each["probabilities"].values()) == approx(1, terms=8, depth=20) for each in found)
