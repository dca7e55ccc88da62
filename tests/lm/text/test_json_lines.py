import gzip
import io
import json
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from lm.config.data import DataConfig
from lm.errors import InputError
from lm.text import documents, json_lines, text_files
from lm.text.text_files import TextFile, find_text_files

SEPARATOR = "<|endoftext|>"


def source(folder: Path, text: str, *, name: str = "a.jsonl", field: str = "text") -> TextFile:
    path = folder / name
    path.write_bytes(text.encode())
    return TextFile(name, path, DataConfig(text_column=field))


def read(found: TextFile) -> list[str]:
    texts: list[str] = []
    for piece in documents.read_pieces(found, SEPARATOR):
        if piece.starts_document:
            texts.append("")
        texts[-1] += piece.text
    return texts


@pytest.mark.parametrize("block", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_each_line_is_a_document(block, tmp_path, monkeypatch, *, ascii_only):
    monkeypatch.setattr(text_files, "BLOCK_BYTES", block)
    draw = random.Random(block)
    for end in ("\n", "\r\n", "\n\n"):
        parts = ["x", "é한", "🙂", "\n", "\u2028", "\x85", '"', "\\", f"\n{SEPARATOR}\n"]
        texts = ["".join(draw.choices(parts, k=draw.randrange(1, 9))) for _ in range(9)]
        lines = (json.dumps({"id": 1, "text": text}, ensure_ascii=ascii_only) for text in texts)
        assert read(source(tmp_path, end.join(lines))) == texts


def test_the_field_is_chosen_and_empty_documents_are_dropped(tmp_path):
    lines = '\ufeff{"body": "one"}\n\n{"body": ""}\n  \n{"body": "two", "text": 3}\n'
    assert read(source(tmp_path, lines, field="body", name="a.ndjson")) == ["one", "two"]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"body": "one"}\n{"body": "two"}\n', ["one", "two"]),
        (gzip.compress(b'{"body": "one"}', mtime=0), ["one"]),
        (json.dumps({"body": "long " * 100_000}).encode(), ["long " * 100_000]),
        (b'{"text": "one"}\n', ['{"text": "one"}\n']),
        (b'{"body": 1}\n', ['{"body": 1}\n']),
        (b"plain text\n", ["plain text\n"]),
        (b"", []),
    ],
)
def test_stdin_is_json_lines_if_its_first_line_is(data, expected, monkeypatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    assert read(find_text_files(["-"], DataConfig(text_column="body"))[0]) == expected


def test_the_format_of_one_endless_line_is_found_from_its_beginning(monkeypatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"{")))
    (found,) = find_text_files(["-"])
    blocks = []

    def endless(*_: object, **__: object) -> Iterator[bytes]:
        while len(blocks) < 200:
            blocks.append(b"a" * text_files.BLOCK_BYTES)
            yield blocks[-1]

    monkeypatch.setattr(text_files, "read_blocks", endless)
    assert found.format == "text"
    assert len(blocks) < 100


def test_long_documents_come_in_pieces(tmp_path):
    text = "long " * 200_000
    found = source(tmp_path, json.dumps({"text": text}))
    assert max(len(piece.text) for piece in documents.read_pieces(found, SEPARATOR)) <= text_files.BLOCK_BYTES
    assert read(found) == [text]


def test_an_endless_line_is_not_read_into_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 10)
    monkeypatch.setattr(json_lines, "MAX_LINE_CHARACTERS", 100)
    with pytest.raises(InputError, match=r"a\.jsonl: line 2 is longer than 100 characters"):
        read(source(tmp_path, '{"text": "x"}\n' + "[" * 200))
