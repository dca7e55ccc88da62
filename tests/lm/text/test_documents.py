"""Separator lines, and lines of JSON, divide files into documents; groups end where they are large enough."""

import hashlib
import random
import re
from pathlib import Path

import pytest

from lm.config.data import DataConfig
from lm.text import documents, text_files
from lm.text.documents import group_by_size
from lm.text.text_files import TextFile, find_text_files

SEPARATOR = "<|endoftext|>"


def written(folder: Path, data: str | bytes, name: str = "corpus.txt") -> TextFile:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return TextFile(name, path, DataConfig(keep_line_ends=True))


def read(file: TextFile, separator: str = SEPARATOR) -> list[str]:
    texts: list[str] = []
    for piece in documents.read_pieces(file, separator):
        if piece.starts_document:
            texts.append("")
        texts[-1] += piece.text
    return texts


def line_by_line(text: str, separator: str) -> list[str]:
    """The rule, said as simply as possible."""
    found = [""]
    for line in re.findall(r"[^\n]*\n|[^\n]+\Z", text):
        if line in (separator, separator + "\n", separator + "\r\n", separator + "\r"):
            found.append("")
        else:
            found[-1] += line
    return [document for document in found if document]


class TestSeparators:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("one\ntwo\n", ["one\ntwo\n"]),
            (f"one\n{SEPARATOR}\ntwo", ["one\n", "two"]),
            (f"one\r\n{SEPARATOR}\r\ntwo\r\n", ["one\r\n", "two\r\n"]),
            (f"{SEPARATOR}\n{SEPARATOR}\none\n{SEPARATOR}", ["one\n"]),
            (
                f"in {SEPARATOR}\n{SEPARATOR} line\n {SEPARATOR}\n",
                [f"in {SEPARATOR}\n{SEPARATOR} line\n {SEPARATOR}\n"],
            ),
            (f"one\n{SEPARATOR}\n\n{SEPARATOR}\ntwo", ["one\n", "\n", "two"]),
            ("", []),
        ],
    )
    def test_a_line_that_is_the_separator_ends_a_document(self, text, expected, tmp_path):
        assert read(written(tmp_path, text)) == expected

    @pytest.mark.parametrize("block", [1, 2, 3, 7, 1000])
    def test_blocks_make_no_difference(self, block, tmp_path, monkeypatch):
        monkeypatch.setattr(text_files, "BLOCK_BYTES", block)
        draw = random.Random(block)
        for _ in range(200):
            separator = draw.choice(["S", "<|e|>", "ab"])
            parts = [separator, "\n", f"\n{separator}\n", "\r\n", "x", "é", " ", separator[:-1], "한"]
            text = "".join(draw.choices(parts, k=draw.randrange(12)))
            file, expected = written(tmp_path, text), line_by_line(text, separator)
            assert read(file, separator) == expected
            assert documents.scan_file(file, separator).squared_bytes == sum(len(it.encode()) ** 2 for it in expected)

    def test_a_document_streams_in_small_fragments(self, tmp_path):
        file = written(tmp_path, "no line ends " * 100_000)
        lengths = [len(piece.text) for piece in documents.read_pieces(file, SEPARATOR)]
        assert max(lengths) <= text_files.BLOCK_BYTES + len(SEPARATOR) + 2

    def test_a_byte_order_mark_is_text(self, tmp_path):
        assert read(written(tmp_path, "\ufeffone")) == ["\ufeffone"]


class TestSurvey:
    def test_counts_and_hash(self, tmp_path):
        data = f"é\n{SEPARATOR}\ntwo".encode()
        found = documents.scan_file(written(tmp_path, data), SEPARATOR)
        assert found.sha256 == hashlib.sha256(data).hexdigest()
        assert (found.size, found.documents, found.bytes) == (len(data), 2, 6)


def test_a_long_document_of_json_lines_comes_in_parts_of_which_the_first_starts_it(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 4)
    (tmp_path / "a.jsonl").write_text('{"text": "abcdefghij"}\n{"text": "klmn"}\n{"text": "o"}\n')
    (file,) = find_text_files([str(tmp_path / "a.jsonl")])
    found = [(piece.text, piece.starts_document) for piece in documents.read_pieces(file, "---")]
    assert found == [("abcd", True), ("efgh", False), ("ij", False), ("klmn", True), ("o", True)]


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([], []),
        ([4], [[4]]),
        ([5, 5], [[5], [5]]),
        ([4, 1, 4, 2, 1], [[4, 1], [4, 2], [1]]),
        ([9, 1, 1, 1, 1], [[9], [1, 1, 1, 1]]),
        ([1, 1, 1, 1, 1], [[1, 1, 1, 1, 1]]),
    ],
)
def test_groups_of_five_characters(sizes, groups):
    assert list(group_by_size(sizes, lambda size: size, limit=5)) == groups
