"""`lm tokenizer`: train, encode, decode and inspect."""

import io
import json
import re
import sys
from pathlib import Path

import pytest
import tokenizers

from cli.main import run
from lm.config.run_config import TokenizerConfig
from lm.tokenizer import Tokenizer, training

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
    assert captured.err == f"{out}: bpe, vocabulary 280, of 2.65 kB of text\n"


def test_characters_are_exactly_the_corpus_s(corpus, tmp_path, capsys):
    out = tmp_path / "char.json"
    assert run(["tokenizer", "train", str(corpus), "-o", str(out), "--kind", "char", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["vocab_size"] == len(set(TEXT))
    assert run(["tokenizer", "encode", str(out), "Ω"]) == 1
    error = capsys.readouterr().err
    assert "'Ω'" in error
    assert error.count("\n") == 1


def test_a_file_is_replaced_only_if_asked(corpus, byte_tokenizer, capsys):
    before = byte_tokenizer.read_bytes()
    arguments = ["tokenizer", "train", str(corpus), "-o", str(byte_tokenizer), "--kind", "char"]
    assert run(arguments) == 1
    assert "--force" in capsys.readouterr().err
    assert byte_tokenizer.read_bytes() == before
    assert run([*arguments, "--force"]) == 0
    assert byte_tokenizer.read_bytes() != before


def test_ids_are_printed_and_read(byte_tokenizer, succeed):
    encode, decode = ([command, byte_tokenizer] for command in ("encode", "decode"))
    assert succeed("tokenizer", *encode, "é\n") == "195 169 10\n"
    assert succeed("tokenizer", *encode, "ab", "--json") == "[97, 98]\n"
    assert succeed("tokenizer", *encode, "a<|endoftext|>", "--parse-special") == "97 256\n"
    for ids in (["97", "256", "98"], ["[97, 256, 98]"]):
        assert succeed("tokenizer", *decode, *ids) == "a<|endoftext|>b"
    assert succeed("tokenizer", *decode, "97", "256", "98", "--skip-special", "--json") == '{"text": "ab"}\n'


@pytest.mark.parametrize("data", ["", "no newline", "한국어 🙂\r\n\n  <|endoftext|>\n"])
def test_encode_then_decode_is_the_identity_on_bytes(data, byte_tokenizer, capfdbinary, monkeypatch):
    piped = data.encode()
    capfdbinary.readouterr()
    for command in ("encode", "decode"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(piped), newline=""))
        assert run(["tokenizer", command, str(byte_tokenizer)]) == 0
        piped = capfdbinary.readouterr().out
    assert piped == data.encode()


MIXED = "Die Katze saß auf der Matte. 고양이가 매트 위에 앉았다. 🙂\n"


@pytest.fixture
def tokenizer(tmp_path) -> Path:
    config = TokenizerConfig(vocab_size=312)
    made = training.train([MIXED] * 3, config, corpus_bytes=1000)
    made.save(tmp_path / "t.json")
    (tmp_path / "text.txt").write_text(MIXED)
    return tmp_path / "t.json"


def test_a_text_is_split_into_tokens(tokenizer, succeed):
    facts, _, split = succeed("tokenizer", "inspect", tokenizer, MIXED).partition("\n\n")
    rows = [line.split() for line in split.splitlines()]
    assert [int(index) for index, _ in rows] == Tokenizer.load(tokenizer).encode(MIXED)
    assert rows[-1][1].endswith("␊")
    assert re.search(r"vocabulary +312\nspecial tokens +<\|endoftext\|> \(0\)", facts)
    report = json.loads(succeed("tokenizer", "inspect", tokenizer, MIXED, "--json"))
    assert bytes(byte for token in report["tokens"] for byte in token["bytes"]).decode() == MIXED
    assert (report["kind"], report["vocab_size"]) == ("bpe", 312)


def test_files_are_measured_one_a_row(tokenizer, tmp_path, succeed):
    text, folder = tmp_path / "text.txt", tmp_path / "more"
    folder.mkdir()
    (folder / "rows.jsonl").write_text('{"text": "Die Katze"}\n{"text": "saß"}\n')
    report = json.loads(succeed("tokenizer", "inspect", tokenizer, text, folder, "--json"))
    tokens = len(Tokenizer.load(tokenizer).encode(MIXED))
    first, second = report["files"]
    assert (first["file"], first["tokens"], second["file"]) == (str(text), tokens, str(folder / "rows.jsonl"))
    assert first["bytes_per_token"] == pytest.approx(len(MIXED.encode()) / tokens)
    assert second["characters_per_token"] == pytest.approx(12 / second["tokens"])
    assert (first["unknown_tokens"], first["lost_bytes"], report["tokens"]) == (0, 0, [])
    table = succeed("tokenizer", "inspect", tokenizer, text).split("\n\n")[1].splitlines()
    assert [re.split("  +", line)[:2] for line in table] == [["file", "tokens"], [str(text), str(tokens)]]
