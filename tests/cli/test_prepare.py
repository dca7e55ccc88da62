"""What a corpus repeats is told where it matters, and its tokenizer is trained or found."""

import json
from pathlib import Path

import pytest

from cli.main import run
from lm.corpus import open_split
from lm.tokenizer import Tokenizer

TEXT = "It was the best of times, it was the worst of times.\n" * 50


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    Path("corpus.txt").write_text(TEXT)
    return tmp_path


def test_trains_a_tokenizer_and_keeps_it_with_the_tokens(capsys):
    assert run(["prepare", "corpus.txt", "-o", "out", "--vocab-size", "280", "--json"]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    tokens = [open_split("out", "train"), open_split("out", "validation")]
    assert report["reused"] is False
    assert [report["splits"][name]["tokens"] for name in ("train", "validation")] == [len(split) for split in tokens]
    tokenizer = Tokenizer.load(Path("out/tokenizer.json"))
    assert "".join(tokenizer.decode(split.read(0, len(split))) for split in tokens) == TEXT
    assert "\x1b" not in captured.err


def test_a_second_run_reuses_the_tokens(folder, succeed):
    for arguments in (["-o", "out"], []):
        first, second = (
            json.loads(succeed("prepare", "corpus.txt", "--tokenizer", "char", *arguments, "--json")) for _ in "ab"
        )
        assert (first["reused"], second["reused"]) == (False, True)
        assert first["folder"] == second["folder"]
    assert Path(first["folder"]).is_relative_to(folder / "cache")


def test_a_tokenizer_and_validation_files_of_its_own(capsys):
    Path("held.txt").write_text("held out")
    assert run(["tokenizer", "train", "corpus.txt", "-o", "t.json", "--kind", "byte"]) == 0
    arguments = ["prepare", "corpus.txt", "--tokenizer", "t.json", "-o", "out", "--validation", "held.txt", "--json"]
    assert run(arguments) == 0
    assert json.loads(capsys.readouterr().out)["splits"]["validation"]["bytes"] == 8


def test_parts_in_one_folder_make_what_one_command_makes(succeed):
    whole = ["prepare", "corpus.txt", "--tokenizer", "char", "--json"]
    reports = [json.loads(succeed(*whole, "--part", f"{number}/2", "-o", "parts")) for number in (1, 2)]
    assert sum(report["chunks"] for report in reports) == 1
    joined = json.loads(succeed(*whole, "-o", "parts"))
    assert {**joined, "folder": "whole"} == json.loads(succeed(*whole, "-o", "whole", "--processes", "2"))
    for path in Path("whole").rglob("*.npy"):
        assert path.read_bytes() == (Path("parts") / path.relative_to("whole")).read_bytes()


def test_repeated_text_is_told_and_warned_of(capsys):
    stories = [f"{number} " + " ".join(f"{number}{word}" for word in TEXT.split()[:60]) for number in range(20)]
    Path("train.txt").write_text("\n<|endoftext|>\n".join([*stories[:18], stories[3]]))
    Path("held.txt").write_text("\n<|endoftext|>\n".join(stories[16:]))
    assert run(["prepare", "train.txt", "--validation", "held.txt", "--tokenizer", "byte", "-o", "out", "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["repeated"] == pytest.approx(0.5, abs=0.05)
    assert "warning 50% of the held-out text occurs in the training text too" in captured.err
