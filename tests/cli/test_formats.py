"""Files of other origin are read as what they are, or refused with what to type; never misread in silence."""

import csv
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import lm
from cli.main import run
from lm.corpus import open_split
from lm.run_folder import find_checkpoint, load_config

SMALL = [
    *("--preset", "tiny", "--d-model", "16", "--n-layers", "1", "--context", "32", "--batch-size", "4"),
    *("--steps", "2", "--evaluate-every", "0", "--device", "cpu", "--threads", "1", "--dtype", "float32"),
]
REVIEWS = [(f'It is, "really" {word}.\nNumber {number}', label) for number in range(40)
           for word, label in (("good", "pos"), ("bad", "neg"))]  # fmt: skip


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    with (tmp_path / "reviews.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "review", "sentiment"), *((n, *one) for n, one in enumerate(REVIEWS))])
    lines = "".join(f"{label}\t{text.replace(chr(10), ' ')}\n" for text, label in REVIEWS)
    (tmp_path / "sms.tsv").write_text(lines)
    (tmp_path / "windows.txt").write_bytes(("\ufeff" + "A line of text.\r\nAnd one more.\r\n" * 40).encode())
    (tmp_path / "unix.txt").write_text("A line of text.\nAnd one more.\n" * 40)
    return tmp_path


def prepared(folder: str) -> str:
    tokens = open_split(folder, "train")
    return bytes(number for number in tokens.read(0, len(tokens)) if number < 256).decode()


@pytest.mark.medium
def test_labels_of_tables_are_learned_and_classified(place, capsys):
    assert run(["train", "reviews.csv", "--objective", "masked", "-o", "masked", "--tokenizer", "byte", *SMALL]) == 0
    columns = ["--set", "files.header=false", "--text-column", "2", "--label-column", "1"]
    named = ["--label-column", "sentiment"]
    for name, out, flags in (("reviews.csv", "csv", named), ("sms.tsv", "tsv", columns)):
        tuned = ["--from", "masked", "--steps", "2", "--device", "cpu", "-o", out]
        assert run(["train", name, *flags, *tuned]) == 0, capsys.readouterr().err
        assert sorted(load_config(find_checkpoint(Path(out))).model.labels) == ["neg", "pos"]
        capsys.readouterr()
        for file, typed in (("reviews.csv", named), ("sms.tsv", columns)):
            assert run(["classify", out, file, *typed[:-2], "--json"]) == 0
            rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
            assert run(["evaluate", out, file, *typed, "--json"]) == 0
            correct = sum(row["label"] == label for row, (_, label) in zip(rows, REVIEWS, strict=True))
            assert json.loads(capsys.readouterr().out)["accuracy"] == correct / len(rows)
            assert [row["text"].split()[2] for row in rows] == ['"really"'] * len(REVIEWS)
    assert run(["classify", "csv", "sms.tsv"]) == 2
    assert run(["classify", "tsv", "sms.tsv", *columns[:2]]) == 1  # whose column of texts?


def test_line_ends_make_no_difference_to_a_new_run(place, capsys):
    assert run(["train", "windows.txt", "-o", "run", "--tokenizer", "byte", *SMALL]) == 0
    config = load_config(find_checkpoint(Path("run")))
    assert config.plan is not None
    capsys.readouterr()
    scores = {}
    for name in ("windows.txt", "unix.txt"):
        assert run(["perplexity", "run", name, "--json"]) == 0
        scores[name] = json.loads(capsys.readouterr().out)["total"]
    assert scores["windows.txt"] == scores["unix.txt"]
    model = lm.load("run")
    with pytest.warns(UserWarning, match="training text of"):
        assert model.perplexity("windows.txt").bytes == Path("unix.txt").stat().st_size
    assert model.generate("a\r\nb", temperature=0, max_tokens=5) == model.generate("a\nb", temperature=0, max_tokens=5)
    for prompt in ("a\r\nb", "a\nb"):
        assert run(["generate", "run", prompt, "--temperature", "0", "--max-tokens", "5", "--json"]) == 0
    first, second = (json.loads(line)["tokens"] for line in capsys.readouterr().out.splitlines())
    assert first == second


def test_stdin_has_the_format_that_is_named(place, monkeypatch):
    with Path("sms.tsv").open("rb") as file:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=file, isatty=lambda: False))
        flags = [
            "--format",
            "tsv",
            "--set",
            "files.header=false",
            "--text-column",
            "2",
            "--tokenizer",
            "byte",
            "-o",
            "tokens",
        ]
        assert run(["prepare", "-", *flags, "-o", "tokens"]) == 0
    assert "pos\t" not in prepared("tokens")
