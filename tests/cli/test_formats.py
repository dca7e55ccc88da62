"""Files of other origin are read as what they are, or refused; malformed rows are left out if asked."""

import csv
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from cli.main import run
from lm.config.data import DataConfig
from lm.corpus.store import open_split
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
    assert run(["prepare", "src", "-o", "run", "--tokenizer", "byte"]) == 0
    assert "2 .py, 1 .js files not read" in capsys.readouterr().err
    assert run(["prepare", "src", "--include", "*.py", "--exclude", "a.*", "-o", "tokens", "--tokenizer", "byte"]) == 0
    assert "text of src/b.py" in prepared("tokens")
    assert "a.py" not in prepared("tokens")


def test_tables_are_rows_of_text(place, capsys):
    assert run(["prepare", "reviews.csv", "--tokenizer", "byte", "-o", "tokens"]) == 0
    assert REVIEWS[0][0] in prepared("tokens")
    assert "pos" not in prepared("tokens")
    Path("ambiguous.jsonl").write_text('{"title": "a", "notes": "b"}\n')
    for name in ("sms.tsv", "ambiguous.jsonl"):
        assert run(["prepare", name, "-o", "none"]) == 2
        assert f"{name}: which column holds the text?" in capsys.readouterr().err


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(("first", "second"), [("user", "assistant"), ("Question", "Answer")])
def test_rows_of_prompts_and_responses_are_no_column_of_text(tmp_path, first, second):
    rows = [(f"What comes after {number}?", f"It is {number + 1}.") for number in range(60)]
    (tmp_path / "chat.jsonl").write_text("".join(json.dumps({first: a, second: b}) + "\n" for a, b in rows))
    assert run(["train", "chat.jsonl", "--steps", "1"]) == 2
    (file,) = find_text_files(["chat.jsonl"], DataConfig(supervised=True, text_column=first, label_column=second))
    assert [(each.prompt, each.label) for each in file.examples()] == rows


@pytest.mark.medium
def test_labels_of_tables_are_learned_and_classified(place, capsys):
    assert run(["train", "reviews.csv", "--objective", "masked", "-o", "masked", "--tokenizer", "byte", *SMALL]) == 0
    columns = ["--set", "files.header=false", "--text-column", "2", "--label-column", "1"]
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


def test_line_ends_make_no_difference_to_a_new_run(place, capsys):
    assert run(["train", "windows.txt", "-o", "run", "--tokenizer", "byte", *SMALL]) == 0
    capsys.readouterr()
    scores = {}
    for name, *flags in (("windows.txt",), ("unix.txt",), ("windows.txt", "--set", "data.keep_line_ends=true")):
        assert run(["perplexity", "run", name, "--json", *flags]) == 0
        scores[name, *flags] = json.loads(capsys.readouterr().out)["total"]
    assert scores["windows.txt",] == scores["unix.txt",]
    assert scores["windows.txt", "--set", "data.keep_line_ends=true"]["bytes"] == Path("windows.txt").stat().st_size
    for prompt in ("a\r\nb", "a\nb"):
        assert run(["generate", "run", prompt, "--temperature", "0", "--max-tokens", "5", "--json"]) == 0
    first, second = (json.loads(line)["tokens"] for line in capsys.readouterr().out.splitlines())
    assert first == second


@pytest.mark.usefixtures("place")
def test_a_book_of_project_gutenberg_is_stripped():
    book = "Header\n*** START OF THE PROJECT GUTENBERG EBOOK EMMA ***\n" + "Emma.\n" * 40
    Path("emma.txt").write_text(book + "*** END OF THE PROJECT GUTENBERG EBOOK EMMA ***\nLicence\n")
    assert (
        run(
            [
                "prepare",
                "emma.txt",
                "--tokenizer",
                "byte",
                "-o",
                "t",
                "--set",
                "data.strip_gutenberg=true",
                "--validation",
                "0",
            ]
        )
        == 0
    )
    assert prepared("t") == "Emma.\n" * 40


@pytest.mark.usefixtures("place")
def test_encodings_and_what_cannot_be_read(capsys):
    Path("novel.txt").write_bytes(("中文文本。" * 60).encode("gb18030"))
    Path("image.txt").write_bytes(b"\0\1\2")
    assert run(["prepare", "novel.txt", "image.txt", "unix.txt", "-o", "tokens"]) == 1
    assert "2 of 3 files cannot be read: novel.txt, image.txt." in capsys.readouterr().err
    flags = ["--tokenizer", "byte", "--validation", "0"]
    assert run(["prepare", "image.txt", "unix.txt", "-o", "some", "--set", "files.skip_unreadable=true", *flags]) == 0
    assert prepared("some") == Path("unix.txt").read_text()
    assert run(["prepare", "novel.txt", "-o", "chinese", "--encoding", "gb18030", *flags]) == 0
    assert prepared("chinese") == "中文文本。" * 60


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
        assert run(["prepare", "-", *flags]) == 0
    assert "pos\t" not in prepared("tokens")


@pytest.mark.parametrize(
    ("name", "text", "flags"),
    [
        ("a.csv", "source,target\n{}", []),
        ("c.csv", "{}", ["--set", "files.header=false"]),
        (
            "e.tsv",
            "target\tsource\n{}",
            ["--set", "parallel.source_column=target", "--set", "parallel.target_column=source"],
        ),
    ],
)
def test_pairs_come_in_tables(name, text, flags, place):
    delimiter = "\t" if name.endswith("tsv") else ","
    Path(name).write_text(text.format("".join(f"eins {n}{delimiter}one {n}\n" for n in range(30))))
    shape = ["--preset", "translation", "--d-model", "16", "--n-layers", "1", "--tokenizer", "byte", "--steps", "1"]
    assert run(["train", "--pairs", name, *flags, *shape, "--device", "cpu", "-o", "run"]) == 0
    config = load_config(find_checkpoint(Path("run")))
    assert config.plan is not None
    texts = [json.loads(line) for line in (Path(config.plan.data) / "validation.jsonl").read_text().splitlines()]
    assert texts
    assert all(pair["source"].startswith("eins") and pair["target"].startswith("one") for pair in texts)


SHAPE = ["--preset", "tiny", "--d-model", "16", "--n-layers", "1", "--n-heads", "2", "--context", "32"]
SHAPE += ["--steps", "1", "--vocab-size", "300", "--threads", "1", "--dtype", "float32", "--batch-size", "2"]
ASKED = [{"role": "user", "content": "What do you see?"}]
UNANSWERED = json.dumps({"messages": ASKED}), json.dumps({"messages": [*ASKED, *ASKED]})
WORDS = [f"owl {number} sees {number * 7} mice by night" for number in range(60)]


def write_rows(folder: Path, *, malformed: bool) -> dict[str, list[str]]:
    """Files of the same rows, with malformed ones among them or without; returns how they are named."""
    folder.mkdir()
    texts = {
        "rows.jsonl": [json.dumps({"text": word}) for word in WORDS],
        "rows.csv": ["id,text", *(f"1,{word}" for word in WORDS)],
        "pairs.txt": [f"{word}\t{word[::-1]}" for word in WORDS],
        "chats.jsonl": [json.dumps({"messages": [*ASKED, {"role": "assistant", "content": word}]}) for word in WORDS],
    }
    wrong = {"jsonl": ('{"text":', '{"other": 1}'), "csv": ("1,2,3", "1"), "txt": ("a", "\t\tb")}
    for name, good in texts.items():
        first, second = UNANSWERED if name == "chats.jsonl" else wrong[name.rpartition(".")[2]]
        lines = [*good[:5], first, *good[5:20], second, *good[20:]] if malformed else good
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return {name: ["--pairs", str(folder / name)] if "pairs" in name else [str(folder / name)] for name in texts}


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "pairs.txt", "chats.jsonl"])
def test_skipped_rows_are_reported_once_and_change_nothing_else(tmp_path, capsys, monkeypatch, name):
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    good, bad = (write_rows(tmp_path / kind, malformed=kind == "bad")[name] for kind in ("good", "bad"))
    preset = [*SHAPE, *(["--set", "model.n_encoder_layers=1"] if "pairs" in name else [])]
    assert run(["train", *bad, *preset, "-o", str(tmp_path / "none")]) in (1, 2)
    weights = []
    for number, named in enumerate((good, [*bad, "--set", "files.skip_malformed=true"])):
        folder = tmp_path / str(number)
        assert run(["train", *named, *preset, "-o", str(folder)]) == 0
        weights.append((folder / "checkpoints" / "step-1" / "model.safetensors").read_bytes())
        said = re.findall(r".* malformed rows are left out \(lines (.*)\)", capsys.readouterr().err)
        assert said == ["6, 22"] * number
    assert weights[0] == weights[1]
    totals = []
    for named in (good, [*bad, "--set", "files.skip_malformed=true"]):
        assert run(["perplexity", str(tmp_path / "0"), *named, "--json"]) == 0
        totals.append(json.loads(capsys.readouterr().out)["total"])
    assert totals[0] == totals[1]
