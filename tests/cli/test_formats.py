"""Files of other origin are read as what they are, or refused with what to type; never misread in silence."""

import csv
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import lm
from cli.main import run
from lm.config.data import DataConfig
from lm.corpus.manifest import Manifest
from lm.corpus.shards import open_split
from lm.run_folder import find_checkpoint, load_config
from lm.text.text_files import find_text_files

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


def test_a_folder_says_what_it_leaves_out(place, capsys):
    for name in ("src/a.py", "src/b.py", "src/c.js", "src/read.me.md"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(f"text of {name}\n" * 9)
    assert run(["train", "src", "-o", "run", "--kind", "byte", *SMALL]) == 0
    assert "note    only 1 .md file read; 2 .py, 1 .js files not read (--include '*.py')\n" in capsys.readouterr().err
    assert run(["prepare", "src", "--include", "*.py", "--exclude", "a.*", "-o", "tokens", "--kind", "byte"]) == 0
    assert "text of src/b.py" in prepared("tokens")
    assert "a.py" not in prepared("tokens")


def test_tables_are_rows_of_text(place, capsys):
    assert run(["prepare", "reviews.csv", "--kind", "byte", "-o", "tokens"]) == 0
    assert "reviews.csv: the text is in column 'review' (--text-column)" in capsys.readouterr().err
    assert REVIEWS[0][0] in prepared("tokens")
    assert "pos" not in prepared("tokens")
    for name, text in (("amb.csv", "title,review,comment\na,b,c\n"), ("sms.tsv", None)):
        if text:
            Path(name).write_text(text)
        assert run(["prepare", name, "-o", "none"]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"lm: {name}: which column holds the text?")
        assert error.endswith(f"(--text-column, --no-header{', lm train --pairs' * (text is None)})\n")
    for name, text in (("amb.jsonl", '{"title": "a", "notes": "b"}\n'), ("amb.json", '[{"title": "a", "notes": "b"}]')):
        Path(name).write_text(text)
        assert run(["prepare", name, "-o", "none"]) == 2
        error = capsys.readouterr().err
        assert (
            error
            == f"lm: {name}: which column holds the text? Name it; the columns are 'title', 'notes' (--text-column)\n"
        )
        assert run(["prepare", name, "--supervised", "-o", "none"]) in (1, 2)
        assert "header" not in capsys.readouterr().err


def test_labels_that_are_not_learned_are_named(place, capsys):
    rows = [{"text": text, "label": label, "topic": "film"} for text, label in REVIEWS]
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, columns, flags in (
        ("reviews.csv", "column 'sentiment'", "--supervised"),
        ("rows.jsonl", "columns 'label', 'topic'", "--supervised, --label-column"),
    ):
        said = f"{name}: only the text is learned; the labels in {columns} are learned in supervised training ({flags})"
        assert run(["train", name, "-o", f"run-{name}", "--kind", "byte", *SMALL]) == 0
        assert capsys.readouterr().err.count(said) == 1
        assert run(["prepare", name, "-o", f"text-{name}", "--kind", "byte"]) == 0
        assert capsys.readouterr().err.count(said) == 1
        assert run(["prepare", name, "--supervised", "-o", f"examples-{name}", "--kind", "byte"]) == 0
        assert "the labels in" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("user", "assistant"),
        ("prompt", "completion"),
        ("Question", "Answer"),
        ("message", "reply"),
        ("query", "response"),
    ],
)
def test_rows_of_prompts_and_responses_are_no_column_of_text(tmp_path, monkeypatch, capsys, first, second):
    monkeypatch.chdir(tmp_path)
    rows = [(f"What comes after {number}?", f"It is {number + 1}.") for number in range(60)]
    (tmp_path / "chat.jsonl").write_text("".join(json.dumps({first: a, second: b}) + "\n" for a, b in rows))
    (tmp_path / "chat.csv").write_text(f"{first},{second}\n" + "".join(f"{a},{b}\n" for a, b in rows))
    typed = ["--supervised", "--text-column", first, "--label-column", second]
    for name in ("chat.jsonl", "chat.csv"):
        assert run(["train", name, "--steps", "1"]) == 2
        said = capsys.readouterr().err
        assert f"its columns are 1 '{first}', 2 '{second}'" in said
        assert said.endswith(f"({', '.join([typed[0], ' '.join(typed[1:3]), ' '.join(typed[3:])])})\n")
        (file,) = find_text_files([name], DataConfig(supervised=True, text_column=first, label_column=second))
        assert [(each.prompt, each.label) for each in file.examples()] == rows
        (file,) = find_text_files([name], DataConfig(text_column=first))
        assert list(file.documents()) == [a for a, _ in rows]


@pytest.mark.medium
def test_labels_of_tables_are_learned_and_classified(place, capsys):
    assert run(["train", "reviews.csv", "--objective", "masked", "-o", "masked", "--kind", "byte", *SMALL]) == 0
    columns = ["--no-header", "--text-column", "2", "--label-column", "1"]
    for name, out, flags in (("reviews.csv", "csv", []), ("sms.tsv", "tsv", columns)):
        tuned = ["--supervised", "--from", "masked", "--steps", "2", "--device", "cpu", "-o", out]
        assert run(["train", name, *flags, *tuned]) == 0, capsys.readouterr().err
        assert sorted(load_config(find_checkpoint(Path(out))).model.labels) == ["neg", "pos"]
        capsys.readouterr()
        for file, typed in (("reviews.csv", []), ("sms.tsv", columns)):
            assert run(["classify", out, file, *typed, "--json"]) == 0
            rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
            assert [row["expected"] for row in rows] == [label for _, label in REVIEWS]
            assert run(["evaluate", out, file, *typed, "--json"]) == 0
            correct = sum(row["label"] == row["expected"] for row in rows)
            assert json.loads(capsys.readouterr().out)["accuracy"] == correct / len(rows)
            assert [row["text"].split()[2] for row in rows] == ['"really"'] * len(REVIEWS)
    assert run(["classify", "csv", "sms.tsv"]) == 2


def test_line_ends_make_no_difference_to_a_new_run(place, capsys):
    assert run(["train", "windows.txt", "-o", "run", "--kind", "byte", *SMALL]) == 0
    error = capsys.readouterr().err
    assert error.count("windows.txt: read with line feeds alone and without the byte order mark") == 1
    config = load_config(find_checkpoint(Path("run")))
    assert config.data.keep_line_ends is False
    assert config.plan is not None
    assert Manifest.read(Path(config.plan.data)).sources[0].read_as == "line_ends=lf"
    scores = {}
    for name, *flags in (("windows.txt",), ("unix.txt",), ("windows.txt", "--keep-line-ends")):
        assert run(["perplexity", "run", name, "--json", *flags]) == 0
        scores[name, *flags] = json.loads(capsys.readouterr().out)["total"]
    assert scores["windows.txt",] == scores["unix.txt",]
    assert scores["windows.txt", "--keep-line-ends"]["bytes"] == Path("windows.txt").stat().st_size
    model = lm.load("run")
    with pytest.warns(UserWarning, match="was training text"):
        assert model.perplexity("windows.txt").bytes == Path("unix.txt").stat().st_size
    assert model.generate("a\r\nb", greedy=True, max_tokens=5) == model.generate("a\nb", greedy=True, max_tokens=5)
    for prompt in ("a\r\nb", "a\nb"):
        assert run(["generate", "run", prompt, "--greedy", "--max-tokens", "5", "--json"]) == 0
    first, second = (json.loads(line)["tokens"] for line in capsys.readouterr().out.splitlines())
    assert first == second
    assert run(["train", "windows.txt", "--keep-line-ends", "-o", "kept", "--kind", "byte", *SMALL]) == 0
    assert "line feeds" not in capsys.readouterr().err


def test_a_book_of_project_gutenberg_is_told(place, capsys):
    book = "Header\n*** START OF THE PROJECT GUTENBERG EBOOK EMMA ***\n" + "Emma.\n" * 40
    Path("emma.txt").write_text(book + "*** END OF THE PROJECT GUTENBERG EBOOK EMMA ***\nLicence\n")
    assert run(["prepare", "emma.txt", "--kind", "byte", "-o", "whole", "--validation", "0"]) == 0
    assert "Project Gutenberg's header and licence are part of the text" in capsys.readouterr().err
    assert run(["prepare", "emma.txt", "--kind", "byte", "-o", "t", "--strip-gutenberg", "--validation", "0"]) == 0
    assert "(--strip-gutenberg)" not in capsys.readouterr().err
    assert prepared("t") == "Emma.\n" * 40


def test_escape_sequences_of_a_terminal_are_told(place, capsys):
    Path("build.txt").write_text("\x1b[31mfailed\x1b[0m\n" * 40)
    assert run(["prepare", "build.txt", "unix.txt", "--kind", "byte", "-o", "log", "--validation", "0"]) == 0
    assert capsys.readouterr().err.count("build.txt: 80 escape sequences of a terminal") == 1
    assert prepared("log").startswith("\x1b[31m")


def test_encodings_and_what_cannot_be_read(place, capsys):
    Path("novel.txt").write_bytes(("中文文本。" * 60).encode("gb18030"))
    Path("image.txt").write_bytes(b"\0\1\2")
    assert run(["prepare", "novel.txt", "image.txt", "unix.txt", "-o", "tokens"]) == 1
    assert "2 of 3 files cannot be read: novel.txt, image.txt. The first: novel.txt" in capsys.readouterr().err
    flags = ["--kind", "byte", "--validation", "0"]
    assert run(["prepare", "image.txt", "unix.txt", "-o", "some", "--skip-unreadable", *flags]) == 0
    assert prepared("some") == Path("unix.txt").read_text()
    assert run(["prepare", "novel.txt", "-o", "chinese", "--encoding", "gb18030", *flags]) == 0
    assert prepared("chinese") == "中文文本。" * 60


def test_stdin_has_the_format_that_is_named(place, monkeypatch):
    with Path("sms.tsv").open("rb") as file:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=file, isatty=lambda: False))
        flags = ["--format", "tsv", "--no-header", "--text-column", "2", "--kind", "byte", "-o", "tokens"]
        assert run(["prepare", "-", *flags]) == 0
    assert "pos\t" not in prepared("tokens")
    assert [*find_text_files(["sms.tsv"])]


@pytest.mark.parametrize(
    ("name", "text", "flags"),
    [
        ("a.csv", "source,target\n{}", []),
        ("b.csv", "de,en\n{}", []),
        ("c.csv", "{}", ["--no-header"]),
        ("d.tsv", "{}", []),
        ("e.tsv", "target\tsource\n{}", ["--source-column", "target", "--target-column", "source"]),
    ],
)
def test_pairs_come_in_tables(name, text, flags, place):
    delimiter = "\t" if name.endswith("tsv") else ","
    Path(name).write_text(text.format("".join(f"eins {n}{delimiter}one {n}\n" for n in range(30))))
    shape = ["--preset", "translation", "--d-model", "16", "--n-layers", "1", "--kind", "byte", "--steps", "1"]
    assert run(["train", "--pairs", name, *flags, *shape, "--device", "cpu", "-o", "run"]) == 0
    config = load_config(find_checkpoint(Path("run")))
    assert config.plan is not None
    texts = [json.loads(line) for line in (Path(config.plan.data) / "validation.jsonl").read_text().splitlines()]
    assert texts
    assert all(pair["source"].startswith("eins") and pair["target"].startswith("one") for pair in texts)
