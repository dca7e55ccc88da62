"""`lm tokenizer`: train, encode, decode and inspect."""

import io
import itertools
import json
import re
import sys
from pathlib import Path

import pytest
import tokenizers
from rich.cells import cell_len

from cli import tokenizer_report
from cli.main import run
from cli.tokenizer_report import build_training_report, format_training_report
from lm.config.data import DataConfig
from lm.config.tokenizer import TokenizerConfig
from lm.corpus.text_corpus import read_training_texts, scan_corpus
from lm.text.text_files import find_text_files
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
    (tmp_path / "run" / "last").write_text("step-200\n")
    capsys.readouterr()
    for folder in (step, tmp_path / "run"):
        assert run(["tokenizer", "encode", str(folder), "a"]) == 0
    assert capsys.readouterr().out == "97\n97\n"


@pytest.mark.parametrize(
    ("kind", "sample", "used"),
    [("bpe", 500, "trained on 500 B"), ("bpe", 100, "trained on a sample: 100 B of 500 B"), ("byte", 0, "nothing")],
)
def test_a_sentence(kind, sample, used):
    made = {"path": "t.json", "kind": kind, "vocab_size": 1234, "bytes_per_token": 2.5, "sample_bytes": sample,
            "corpus_bytes": 500}  # fmt: skip
    assert format_training_report(made).startswith(f"t.json: {kind}, vocabulary 1,234, 2.50 bytes per token; {used}")


def test_bytes_per_token_are_those_of_the_corpus(tmp_path):
    (tmp_path / "text.txt").write_text("the owl saw the fox. " * 50)
    corpus = scan_corpus(find_text_files([str(tmp_path / "text.txt")]), DataConfig(validation="0"))
    config = TokenizerConfig(kind="bpe", vocab_size=270)
    trained = training.train(read_training_texts(corpus), config, corpus_bytes=corpus.files_bytes)
    found = build_training_report(trained, corpus, config, tmp_path / "t.json")
    ids = trained.tokenizer.encode((tmp_path / "text.txt").read_text())
    assert found["bytes_per_token"] == pytest.approx(1050 / len(ids), abs=1e-4)  # four decimals are shown
    assert (found["corpus_bytes"], found["vocab_size"]) == (1050, trained.tokenizer.vocab_size)


MIXED = "Die Katze saß auf der Matte. 고양이가 매트 위에 앉았다. 🙂\n"

COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def tokenizer(tmp_path) -> Path:
    config = TokenizerConfig(vocab_size=312, min_frequency=1)
    made = training.train([MIXED] * 3, config, corpus_bytes=1000).tokenizer
    made.save(tmp_path / "t.json")
    (tmp_path / "text.txt").write_text(MIXED)
    return tmp_path / "t.json"


@pytest.fixture
def drawn(terminal, monkeypatch, tokenizer):
    """Returns the lines that a terminal of a width shows of a text's tokens."""

    def draw(text, *, width, colour):
        screen = terminal(width)
        if not colour:
            monkeypatch.setenv("NO_COLOR", "1")
        assert run(["tokenizer", "inspect", str(tokenizer), text]) == 0
        return screen.getvalue().partition("\n\n")[2].splitlines()

    return draw


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


@pytest.mark.parametrize("width", [12, 40, 200])
@pytest.mark.parametrize("colour", [True, False])
def test_ids_stand_below_their_tokens(width, tokenizer, drawn, *, colour):
    rows = drawn(MIXED * 2, width=width, colour=colour)
    plain = [COLOUR.sub("", row) for row in rows]
    assert len(plain) % 2 == 0
    found = []
    for tokens, below in zip(plain[::2], plain[1::2], strict=True):
        assert cell_len(tokens) <= width
        starts = [match.start() for match in re.finditer(r"\d+", below)]
        found += [int(index) for index in below.split()]
        if not colour:
            marks = [cell_len(tokens[:at]) for at, letter in enumerate(tokens) if letter == "|"]
            assert [0, *[mark + 1 for mark in marks[:-1]]] == starts
    assert found == ids(tokenizer, MIXED * 2)
    assert any("\x1b[38;5;16;48;5;" in row for row in rows) == colour


def test_neighbours_differ_in_colour(tokenizer, drawn):
    first = drawn(MIXED, width=200, colour=True)[0]
    backgrounds = re.findall(r"\x1b\[38;5;16;48;5;(\d+)m", first)
    assert len(backgrounds) == len(ids(tokenizer, MIXED))
    assert all(one != other for one, other in itertools.pairwise(backgrounds))


def test_a_token_wider_than_the_terminal_is_clipped():
    ((cell,),) = tokenizer_report.layout_lines([(7, ("한" * 50).encode())], 20)
    assert cell_len(cell.text) < 20
    assert cell.text.endswith("…")


@pytest.mark.parametrize(("width", "lines"), [(12, [["ab", "c", "한국"]]), (11, [["ab", "c"], ["한국"]])])
def test_a_line_has_the_tokens_and_ids_that_fit_with_a_column_between_them(width, lines):
    tokens = [(7, b"ab"), (123, b"c"), (8, "한국".encode())]  # of 2, 3 and 4 columns
    laid_out = [*tokenizer_report.layout_lines(tokens, width)]
    assert [[cell.text for cell in line] for line in laid_out] == lines
    assert [cell.is_odd for line in laid_out for cell in line] == [False, True, False]


@pytest.mark.parametrize(("width", "text"), [(5, "abcd"), (4, "ab…"), (3, "a…")])
def test_a_token_leaves_a_column_of_the_line_free(width, text):
    ((cell,),) = tokenizer_report.layout_lines([(7, b"abcd")], width)
    assert cell.text == text


def test_on_a_terminal_facts_stand_in_two_columns(terminal, tokenizer):
    screen = terminal(60)
    assert run(["tokenizer", "inspect", str(tokenizer)]) == 0
    assert {"kind            bpe", "vocabulary      312"} <= {line.rstrip() for line in screen.lines}
    assert max(map(cell_len, screen.lines)) <= 60


def test_a_line_end_ends_a_line():
    shown = [
        [cell.text for cell in line] for line in tokenizer_report.layout_lines([(1, b"a"), (2, b"\n"), (3, b"b")], 80)
    ]
    assert shown == [["a", "⏎"], ["b"]]


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
