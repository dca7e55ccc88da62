"""What a corpus repeats is told where it matters, and its tokenizer is trained or found."""

import gzip
import io
import json
import sys
from pathlib import Path

import pytest

from cli.corpus_report import print_prepared, train_or_load_tokenizer
from cli.main import run
from lm.config.data import DataConfig
from lm.config.tokenizer import TokenizerConfig
from lm.corpus.manifest import Manifest, Repetition, SplitRecord
from lm.corpus.prepared_folder import PreparedFolder
from lm.corpus.shards import open_split
from lm.corpus.text_corpus import scan_corpus
from lm.text.text_files import find_text_files
from lm.tokenizer.tokenizer import Tokenizer

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
    tokenizer = Tokenizer.load("out/tokenizer.json")
    assert "".join(tokenizer.decode(split.read(0, len(split))) for split in tokens) == TEXT
    assert "wrote out" in captured.err
    assert "\x1b" not in captured.err


def test_a_second_run_reuses_the_tokens(capsys):
    arguments = ["prepare", "corpus.txt", "-o", "out", "--kind", "char", "--json"]
    assert run(arguments) == 0
    before = Path("out/train-00000.npy").stat().st_mtime_ns
    assert run(arguments) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["reused"], second["reused"]) == (False, True)
    assert Path("out/train-00000.npy").stat().st_mtime_ns == before


def test_without_a_folder_tokens_go_to_the_cache(folder, capsys):
    assert run(["prepare", "corpus.txt", "--kind", "byte", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert Path(report["folder"]).is_relative_to(folder / "cache")


def test_a_tokenizer_and_validation_files_of_its_own(capsys):
    Path("held.txt").write_text("held out")
    assert run(["tokenizer", "train", "corpus.txt", "-o", "t.json", "--kind", "byte"]) == 0
    arguments = ["prepare", "corpus.txt", "--tokenizer", "t.json", "-o", "out", "--validation", "held.txt", "--json"]
    assert run(arguments) == 0
    assert json.loads(capsys.readouterr().out)["splits"]["validation"]["bytes"] == 8


def test_stdin_is_a_corpus(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abcabc")))
    assert run(["prepare", "-", "--kind", "char", "-o", "out", "--validation", "0"]) == 0
    assert open_split("out", "train").read(0, 6).tolist() == [0, 1, 2, 0, 1, 2]


def test_json_lines_and_compressed_files_are_a_corpus(capsys):
    lines = "".join(json.dumps({"body": text}) + "\n" for text in ("one", "two", "three"))
    Path("a.jsonl").write_text(lines)
    Path("b.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    for name in ("a.jsonl", "b.jsonl.gz"):
        arguments = ["prepare", name, "--text-column", "body", "--kind", "char", "--validation", "0", "--json"]
        assert run(arguments) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["splits"]["train"] == {"documents": 3, "tokens": 11, "bytes": 11, "shards": 1}
    assert (second["folder"], second["reused"]) == (first["folder"], True)


def test_partitions_are_joined_to_what_one_command_makes(capsys):
    whole = ["corpus.txt", "--kind", "char", "--json"]
    for number in ("1", "2"):
        assert run(["prepare", *whole, "--part", f"{number}/2", "-o", number]) == 0
    assert run(["prepare", "--join", "1", "2", "-o", "joined", "--json"]) == 0
    assert run(["prepare", *whole, "-o", "whole", "--processes", "2"]) == 0
    captured = capsys.readouterr()
    first, second, joined, report = map(json.loads, captured.out.splitlines())
    assert (first["partition"], first["of"], first["chunks"] + second["chunks"]) == (1, 2, 1)
    assert {**joined, "folder": "whole"} == report
    assert "wrote 1: partition 1 of 2, 1 of 1 chunks" in captured.err
    for path in Path("whole").iterdir():
        assert path.read_bytes() == (Path("joined") / path.name).read_bytes()


@pytest.mark.parametrize("part", ["0/2", "3/2", "1/0", "-1/2", "1", "1/2/3", "a/b", "1.5/2", "1/2000000"])
def test_a_partition_has_a_number_up_to_theirs(capsys, part):
    assert run(["prepare", "corpus.txt", "--part", part, "-o", "out"]) == 2
    assert f"a partition is I/N with I from 1 to N, such as 2/4, not '{part}' (--part)" in capsys.readouterr().err
    assert run(["prepare", "corpus.txt", "--part", "1/1"]) == 2
    assert "a partition needs a folder of its own" in capsys.readouterr().err


REPORT = """\
split       documents  tokens     text  bytes per token
train           1,200   3,000  6.01 kB             2.00
validation          0       0      0 B                –
"""


def test_the_splits_are_told_and_what_was_reused(capsys):
    splits = {"train": SplitRecord(1200, 3000, 6010, (2000, 1000)), "validation": SplitRecord(0, 0, 0, ())}
    manifest = Manifest(kind="text", key="k", sources=(), validation_sources=(), tokenizer="t", vocab_size=300,
                        dtype="uint16", separator="", validation="0", splits=splits,
                        repetition=Repetition(0, None, 50))  # fmt: skip
    for reused, chunks, notes in ((False, 0, ["wrote out"]), (True, 1000, [
        "reused 1,000 chunks of an interrupted preparation", "reused out"])):  # fmt: skip
        print_prepared(PreparedFolder(Path("out"), manifest, reused, chunks), as_json=reused)
        printed = capsys.readouterr()
        lines = printed.err.splitlines()
        assert [line.rstrip() for line in lines] == [*REPORT.splitlines(), *notes]
        assert bool(printed.out) == reused
    report = json.loads(printed.out)
    assert report["splits"]["train"] == {"documents": 1200, "tokens": 3000, "bytes": 6010, "shards": 2}
    assert report["repetition"] == {"documents": 0, "held_out": None, "window": 50}
    assert (report["folder"], report["reused"], report["chunks_reused"]) == ("out", True, 1000)
    assert (report["vocab_size"], report["tokenizer"]) == (300, "t")


def test_repeated_text_is_told_and_warned_of(capsys):
    stories = [f"{number} " + " ".join(f"{number}{word}" for word in TEXT.split()[:60]) for number in range(20)]
    Path("train.txt").write_text("\n<|endoftext|>\n".join([*stories[:18], stories[3]]))
    Path("held.txt").write_text("\n<|endoftext|>\n".join(stories[16:]))
    arguments = ["prepare", "train.txt", "--validation", "held.txt", "--kind", "byte", "-o", "out", "--json"]
    for _ in range(2):  # the second time it is read from the folder
        assert run(arguments) == 0
        captured = capsys.readouterr()
        found = json.loads(captured.out)["repetition"]
        assert found["documents"] == 2  # the last one of train.txt lacks the line end
        assert found["held_out"] == pytest.approx(0.5, abs=0.05)
        assert "copies  2 of 23 documents (8.7%) repeat another" in captured.err
        assert "warning 50% of the held-out text occurs in the training text too" in captured.err


def as_example(number):
    return json.dumps({"prompt": f"What is {number} plus {number}?", "completion": f"It is {2 * number}."})


def as_conversation(number):
    messages = [{"role": "user", "content": f"Twice {number}?"}, {"role": "assistant", "content": f"{2 * number}."}]
    return json.dumps({"messages": messages})


@pytest.mark.parametrize(("noun", "make"), [("examples", as_example), ("conversations", as_conversation)])
def test_copies_of_examples_and_conversations_are_told_and_on_one_side(capsys, noun, make):
    numbers = [*range(200), *range(20), *range(10)]
    Path("task.jsonl").write_text("".join(make(number) + "\n" for number in numbers))
    Path("held.jsonl").write_text("".join(make(number) + "\n" for number in (*range(195, 200), *range(300, 305))))
    arguments = ["prepare", "task.jsonl", "--supervised", "--kind", "byte", "--json"]
    assert run([*arguments, "--validation", "0.2", "-o", "out"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["repetition"] == {"documents": 30, "held_out": 0.0, "window": 0}
    assert f"copies  30 of 230 {noun} (13.0%) repeat another, all in the same split\n" in captured.err
    assert "warning" not in captured.err
    assert run([*arguments, "--validation", "held.jsonl", "-o", "other"]) == 0
    captured = capsys.readouterr()
    assert f"copies  35 of 240 {noun} (14.6%) repeat another\n" in captured.err
    assert "warning 50% of the held-out text occurs in the training text too" in captured.err


def test_the_stories_that_ship_are_no_cause_for_warning(capsys):
    corpora = Path(__file__).parents[2] / "corpora" / "stories"
    arguments = ["prepare", str(corpora / "train.txt"), "--validation", str(corpora / "heldout.txt"), "--kind", "byte"]
    assert run([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert 0 < json.loads(captured.out)["repetition"]["held_out"] < 0.03
    assert "warning" not in captured.err
    assert "copies" not in captured.err


def test_a_tokenizer_is_trained_once_for_the_same_corpus(folder, capsys):
    corpus = scan_corpus(find_text_files(["corpus.txt"]), DataConfig())
    config = TokenizerConfig(kind="bpe", vocab_size=280)
    first, second = (train_or_load_tokenizer(corpus, config) for _ in range(2))
    assert first.sha256 == second.sha256
    assert train_or_load_tokenizer(corpus, config, special=["<x>"]).special_tokens.keys() == {"<|endoftext|>", "<x>"}
    assert capsys.readouterr().err == ""
