from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers

from cli.main import run
from lm.tokenizer import training

TEXT = "It was the best of times, it was the worst of times.\n" * 50


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def byte_tokenizer(corpus: Path, tmp_path: Path) -> Path:
    path = tmp_path / "bytes.json"
    assert run(["tokenizer", "train", str(corpus), "-o", str(path), "--kind", "byte"]) == 0
    return path


def lm(*arguments: str, stdin: bytes = b"") -> bytes:
    command = [sys.executable, "-m", "cli.main", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, check=True).stdout


def test_training_writes_a_file_and_says_what_it_made(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "tokenizer.json"
    arguments = ["tokenizer", "train", str(corpus), "-o", str(out), "--vocab-size", "280", "--special", "<|user|>"]
    assert run([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    loaded = tokenizers.Tokenizer.from_file(str(out))
    assert report["vocab_size"] == loaded.get_vocab_size() == 280
    assert report["special_tokens"] == {"<|endoftext|>": 0, "<|user|>": 1}
    assert report["bytes_per_token"] == pytest.approx(len(TEXT) / len(loaded.encode(TEXT).ids), abs=1e-3)
    assert "vocabulary 280" in captured.err
    assert "trained on 2.65 kB" in captured.err


def test_a_sample_is_announced(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training.train, "__kwdefaults__", {"special_tokens": (), "unknown": None, "sample_bytes": 1000})
    (tmp_path / "z.txt").write_text("short text")
    assert run(["tokenizer", "train", str(tmp_path), "-o", str(tmp_path / "t.json"), "--vocab-size", "270"]) == 0
    assert "trained on a sample: 10 B of 2.66 kB" in capsys.readouterr().err


def test_characters_are_exactly_the_corpus_s(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "char.json"
    assert run(["tokenizer", "train", str(corpus), "-o", str(out), "--kind", "char", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["vocab_size"] == len(set(TEXT))
    assert run(["tokenizer", "encode", str(out), "Ω"]) == 1
    error = capsys.readouterr().err
    assert "U+03A9" in error
    assert error.count("\n") == 1


def test_a_file_is_replaced_only_if_asked(
    corpus: Path, byte_tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = byte_tokenizer.read_bytes()
    arguments = ["tokenizer", "train", str(corpus), "-o", str(byte_tokenizer), "--kind", "char"]
    assert run(arguments) == 1
    assert "--force" in capsys.readouterr().err
    assert byte_tokenizer.read_bytes() == before
    assert run([*arguments, "--force"]) == 0
    assert byte_tokenizer.read_bytes() != before


def test_encode_prints_ids(byte_tokenizer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(["tokenizer", "encode", str(byte_tokenizer), "é\n"]) == 0
    assert run(["tokenizer", "encode", str(byte_tokenizer), "ab", "--json"]) == 0
    assert capsys.readouterr().out == "195 169 10\n[97, 98]\n"


def test_special_tokens_are_parsed_if_asked(byte_tokenizer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(["tokenizer", "encode", str(byte_tokenizer), "a<|endoftext|>", "--parse-special"]) == 0
    assert capsys.readouterr().out == "97 256\n"


def test_decode_takes_what_encode_prints(byte_tokenizer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    for ids in (["97", "256", "98"], ["[97, 256, 98]"]):
        assert run(["tokenizer", "decode", str(byte_tokenizer), *ids]) == 0
    assert run(["tokenizer", "decode", str(byte_tokenizer), "97", "256", "98", "--skip-special", "--json"]) == 0
    assert capsys.readouterr().out == 'a<|endoftext|>ba<|endoftext|>b{"text": "ab"}\n'


def test_inspect_reads_a_file_that_is_named_and_shows_any_other_text(
    byte_tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The owl saw the fox.\n")
    capsys.readouterr()
    command = ["tokenizer", "inspect", str(byte_tokenizer), "--json"]
    assert run([*command, str(text)]) == run([*command, "--file", str(text)]) == 0
    argument, flag = map(json.loads, capsys.readouterr().out.splitlines())
    assert argument == flag
    for other in (str(tmp_path / "nowhere.txt"), "a/" * 3000, str(tmp_path)):
        assert run([*command, other]) == 0
        assert len(json.loads(capsys.readouterr().out)["tokens"]) == len(other)


@pytest.mark.parametrize("data", ["", "no newline", "한국어 🙂\r\n\n  <|endoftext|>\n"])
def test_encode_then_decode_is_the_identity_on_bytes(data: str, byte_tokenizer: Path) -> None:
    ids = lm("tokenizer", "encode", str(byte_tokenizer), stdin=data.encode())
    assert lm("tokenizer", "decode", str(byte_tokenizer), stdin=ids) == data.encode()


def test_a_run_and_a_checkpoint_have_their_tokenizer(
    byte_tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = tmp_path / "run" / "checkpoints" / "step-200"
    step.mkdir(parents=True)
    (step / "tokenizer.json").write_bytes(byte_tokenizer.read_bytes())
    (tmp_path / "run" / "last").write_text("step-200\n")
    capsys.readouterr()
    for folder in (step, tmp_path / "run"):
        assert run(["tokenizer", "encode", str(folder), "a"]) == 0
    assert capsys.readouterr().out == "97\n97\n"
