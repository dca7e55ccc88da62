from __future__ import annotations

import io
import itertools
import json
import re
from pathlib import Path

import pytest
from rich.cells import cell_len

from cli import tokenizer_report
from cli.main import run
from lm.config.tokenizer import TokenizerConfig
from lm.tokenizer import training

TEXT = "Die Katze saß auf der Matte. 고양이가 매트 위에 앉았다. 🙂\n"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    config = TokenizerConfig(vocab_size=312, min_frequency=1)
    made = training.train([TEXT] * 3, config, corpus_bytes=1000).tokenizer
    made.save(tmp_path / "t.json")
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "t.json"


def drawn(monkeypatch: pytest.MonkeyPatch, tokenizer: Path, text: str, *, width: int, colour: bool) -> list[str]:
    for name in ("NO_COLOR", "COLORTERM", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", str(width))
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    assert run(["tokenizer", "inspect", str(tokenizer), text]) == 0
    return terminal.getvalue().partition("\n\n")[2].splitlines()


def ids(path: Path, text: str) -> list[int]:
    from lm.tokenizer.tokenizer import Tokenizer

    return Tokenizer.load(path).encode(text)


def test_a_pipe_gets_a_token_a_line(tokenizer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tokenizer", "inspect", str(tokenizer), TEXT]) == 0
    facts, _, split = capsys.readouterr().out.partition("\n\n")
    rows = [line.split() for line in split.splitlines()]
    assert [int(index) for index, _ in rows] == ids(tokenizer, TEXT)
    assert [text for _, text in rows][-1].endswith("⏎")
    assert "\x1b" not in split
    assert re.search(r"vocabulary +312\n", facts)
    assert re.search(r"special tokens +<\|endoftext\|> \(0\)\n", facts)


@pytest.mark.parametrize("width", [12, 40, 200])
@pytest.mark.parametrize("colour", [True, False])
def test_ids_stand_below_their_tokens(
    width: int, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, *, colour: bool
) -> None:
    rows = drawn(monkeypatch, tokenizer, TEXT * 2, width=width, colour=colour)
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
    assert found == ids(tokenizer, TEXT * 2)
    assert any("\x1b[38;5;16;48;5;" in row for row in rows) == colour


def test_neighbours_differ_in_colour(tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = drawn(monkeypatch, tokenizer, TEXT, width=200, colour=True)[0]
    backgrounds = re.findall(r"\x1b\[38;5;16;48;5;(\d+)m", first)
    assert len(backgrounds) == len(ids(tokenizer, TEXT))
    assert all(one != other for one, other in itertools.pairwise(backgrounds))


def test_a_token_wider_than_the_terminal_is_clipped() -> None:
    ((cell,),) = tokenizer_report.layout_lines([(7, ("한" * 50).encode())], 20)
    assert cell_len(cell.text) < 20
    assert cell.text.endswith("…")


def test_a_line_end_ends_a_line() -> None:
    shown = [
        [cell.text for cell in line] for line in tokenizer_report.layout_lines([(1, b"a"), (2, b"\n"), (3, b"b")], 80)
    ]
    assert shown == [["a", "⏎"], ["b"]]


def test_json_says_it_all(tokenizer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tokenizer.with_name("text.txt")
    assert run(["tokenizer", "inspect", str(tokenizer), TEXT, "--file", str(file), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert bytes(byte for token in report["tokens"] for byte in token["bytes"]).decode() == TEXT
    assert [token["id"] for token in report["tokens"]] == ids(tokenizer, TEXT)
    assert report["files"]["bytes"] == len(TEXT.encode())
    assert report["files"]["tokens_per_word"] == len(report["tokens"]) / len(TEXT.split())
    assert (report["kind"], report["vocab_size"]) == ("bpe", 312)
    assert len(report["longest"][0]["bytes"]) >= len(report["longest"][-1]["bytes"])


def test_a_file_is_measured(tokenizer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tokenizer", "inspect", str(tokenizer), "--file", str(tokenizer.with_name("text.txt"))]) == 0
    out = capsys.readouterr().out
    expected = len(TEXT.encode()) / len(ids(tokenizer, TEXT))
    assert f"bytes per token  {expected:.3f}\n" in out
    assert not out.endswith("\n\n")
