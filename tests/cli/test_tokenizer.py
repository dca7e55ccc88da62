"""`lm tokenizer`: train, encode, decode and inspect."""

import io
import json
import re
import sys
from pathlib import Path

import pytest
import tokenizers

from cli.main import run
from lm.config.tokenizer import TokenizerConfig
from lm.tokenizer import training
from lm.tokenizer.tokenizer import Tokenizer

TEXT = "It was the best of times, it was the worst of times.\n" * 50


@pytest.fixture
def corpus(tmp_path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def byte_tokenizer(corpus, tmp_path) -> Path:
    path = tmp_path / "bytes.json"
    assert run(["tokenizer", "train", str(corpus), "-o", str(path), "--kind", "byte"]) == 0
    return path


def test_training_writes_a_file_and_says_what_it_made(corpus, tmp_path, capsys):
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


def test_a_sample_is_announced(corpus, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(training.train, "__kwdefaults__", {"special_tokens": (), "unknown": None, "sample_bytes": 1000})
    (tmp_path / "z.txt").write_text("short text")
    assert run(["tokenizer", "train", str(tmp_path), "-o", str(tmp_path / "t.json"), "--vocab-size", "270"]) == 0
    assert "trained on a sample: 10 B of 2.66 kB" in capsys.readouterr().err


def test_characters_are_exactly_the_corpus_s(corpus, tmp_path, capsys):
    out = tmp_path / "char.json"
    assert run(["tokenizer", "train", str(corpus), "-o", str(out), "--kind", "char", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["vocab_size"] == len(set(TEXT))
    assert run(["tokenizer", "encode", str(out), "Ω"]) == 1
    error = capsys.readouterr().err
    assert "U+03A9" in error
    assert error.count("\n") == 1


def test_a_file_is_replaced_only_if_asked(corpus, byte_tokenizer, capsys):
    before = byte_tokenizer.read_bytes()
    arguments = ["tokenizer", "train", str(corpus), "-o", str(byte_tokenizer), "--kind", "char"]
    assert run(arguments) == 1
    assert "--force" in capsys.readouterr().err
    assert byte_tokenizer.read_bytes() == before
    assert run([*arguments, "--force"]) == 0
    assert byte_tokenizer.read_bytes() != before


def test_encode_prints_ids(byte_tokenizer, capsys):
    capsys.readouterr()
    assert run(["tokenizer", "encode", str(byte_tokenizer), "é\n"]) == 0
    assert run(["tokenizer", "encode", str(byte_tokenizer), "ab", "--json"]) == 0
    assert capsys.readouterr().out == "195 169 10\n[97, 98]\n"


def test_special_tokens_are_parsed_if_asked(byte_tokenizer, capsys):
    capsys.readouterr()
    assert run(["tokenizer", "encode", str(byte_tokenizer), "a<|endoftext|>", "--parse-special"]) == 0
    assert capsys.readouterr().out == "97 256\n"


def test_decode_takes_what_encode_prints(byte_tokenizer, capsys):
    capsys.readouterr()
    for ids in (["97", "256", "98"], ["[97, 256, 98]"]):
        assert run(["tokenizer", "decode", str(byte_tokenizer), *ids]) == 0
    assert run(["tokenizer", "decode", str(byte_tokenizer), "97", "256", "98", "--skip-special", "--json"]) == 0
    assert capsys.readouterr().out == 'a<|endoftext|>ba<|endoftext|>b{"text": "ab"}\n'


def test_inspect_reads_a_file_that_is_named_and_shows_any_other_text(byte_tokenizer, tmp_path, capsys):
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
def test_encode_then_decode_is_the_identity_on_bytes(data, byte_tokenizer, capfdbinary, monkeypatch):
    piped = data.encode()
    capfdbinary.readouterr()
    for command in ("encode", "decode"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(piped), newline=""))
        assert run(["tokenizer", command, str(byte_tokenizer)]) == 0
        piped = capfdbinary.readouterr().out
    assert piped == data.encode()


def test_a_run_and_a_checkpoint_have_their_tokenizer(byte_tokenizer, tmp_path, capsys):
    step = tmp_path / "run" / "checkpoints" / "step-200"
    step.mkdir(parents=True)
    (step / "tokenizer.json").write_bytes(byte_tokenizer.read_bytes())
    for name in ("model.safetensors", "manifest.json"):
        (step / name).touch()
    capsys.readouterr()
    for folder in (step, tmp_path / "run"):
        assert run(["tokenizer", "encode", str(folder), "a"]) == 0
    assert capsys.readouterr().out == "97\n97\n"


MIXED = "Die Katze saß auf der Matte. 고양이가 매트 위에 앉았다. 🙂\n"


@pytest.fixture
def tokenizer(tmp_path) -> Path:
    config = TokenizerConfig(vocab_size=312, min_frequency=1)
    made = training.train([MIXED] * 3, config, corpus_bytes=1000).tokenizer
    made.save(tmp_path / "t.json")
    (tmp_path / "text.txt").write_text(MIXED)
    return tmp_path / "t.json"


def ids(path: Path, text: str) -> list[int]:
    return Tokenizer.load(path).encode(text)


def test_a_pipe_gets_a_token_a_line(tokenizer, capsys):
    assert run(["tokenizer", "inspect", str(tokenizer), MIXED]) == 0
    facts, _, split = capsys.readouterr().out.partition("\n\n")
    rows = [line.split() for line in split.splitlines()]
    assert [int(index) for index, _ in rows] == ids(tokenizer, MIXED)
    assert [text for _, text in rows][-1].endswith("⏎")
    assert "\x1b" not in split
    assert re.search(r"vocabulary +312\n", facts)
    assert re.search(r"special tokens +<\|endoftext\|> \(0\)\n", facts)


def test_json_says_it_all(tokenizer, capsys):
    file = tokenizer.with_name("text.txt")
    assert run(["tokenizer", "inspect", str(tokenizer), MIXED, "--file", str(file), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert bytes(byte for token in report["tokens"] for byte in token["bytes"]).decode() == MIXED
    assert [token["id"] for token in report["tokens"]] == ids(tokenizer, MIXED)
    assert report["files"]["bytes"] == len(MIXED.encode())
    assert report["files"]["tokens_per_word"] == len(report["tokens"]) / len(MIXED.split())
    assert (report["kind"], report["vocab_size"]) == ("bpe", 312)
    assert len(report["longest"][0]["bytes"]) >= len(report["longest"][-1]["bytes"])


def test_a_file_is_measured(tokenizer, capsys):
    assert run(["tokenizer", "inspect", str(tokenizer), "--file", str(tokenizer.with_name("text.txt"))]) == 0
    out = capsys.readouterr().out
    expected = len(MIXED.encode()) / len(ids(tokenizer, MIXED))
    assert f"bytes per token  {expected:.3f}\n" in out
    assert not out.endswith("\n\n")
