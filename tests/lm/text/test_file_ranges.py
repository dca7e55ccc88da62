"""A divided file is read as the whole one is, wherever it is divided."""

import gzip
import itertools
import json

import pytest

from lm.config.data import DataConfig
from lm.text.documents import read_pieces, split_into_ranges
from lm.text.text_files import FileRange, TextFile, find_text_files

TEXTS = [
    b"one\n%%\ntwo %% three\n%%\n\n%%\r\nfour\r\n%%\nfive",
    b"%%\n%%\na%%\n%%\n%%b\n%%\n",
    b"no end of a document \xc3\xa9\n" * 3,
    b"\xef\xbb\xbf\xc3\xa9\n%%\n\xf0\x9f\x99\x82\n%%",
]


def documents(file: TextFile, separator: str, file_range: FileRange | None = None) -> list[str]:
    found: list[str] = []
    for piece in read_pieces(file, separator, file_range=file_range):
        if piece.starts_document:
            found.append("")
        found[-1] += piece.text
    return found


def in_parts(file: TextFile, separator: str, size: int) -> list[list[str]]:
    ranges = split_into_ranges(file, separator, size=size) or [None]
    return [documents(file, separator, file_range) for file_range in ranges]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("separator", ["%%", "%", "", "two %% three"])
def test_parts_have_the_documents_of_the_whole(text, separator, tmp_path):
    (tmp_path / "a.txt").write_bytes(text)
    file = TextFile("a.txt", tmp_path / "a.txt")
    whole = documents(file, separator)
    for size in range(1, len(text) + 1):
        assert [document for part in in_parts(file, separator, size) for document in part] == whole


def test_parts_are_no_smaller_than_asked_for_and_cover_the_file(tmp_path):
    (tmp_path / "a.txt").write_text("%%\n".join(f"document {number}\n" for number in range(500)))
    file = TextFile("a.txt", tmp_path / "a.txt")
    found = split_into_ranges(file, "%%", size=100)
    assert found is not None
    assert found[0].start == 0
    assert found[-1].stop == file.path.stat().st_size
    assert all(first.stop == second.start for first, second in itertools.pairwise(found))
    assert all(100 <= file_range.stop - file_range.start < 130 for file_range in found[:-1])


def test_lines_of_json_are_documents(tmp_path):
    lines = "\n".join(json.dumps({"text": f"{number}\n%%\n"}) for number in range(200))
    (tmp_path / "a.jsonl").write_text(lines)
    file = TextFile("a.jsonl", tmp_path / "a.jsonl")
    parts = in_parts(file, "%%", 300)
    assert len(parts) > 10
    assert [document for part in parts for document in part] == documents(file, "%%")


@pytest.mark.parametrize("length", [1000, *range((1 << 20) - 5, (1 << 20) + 15)])
def test_a_long_document_is_searched_block_by_block(tmp_path, length):
    """The separator lies in a block of a megabyte, which begins where the first range may end, or across its end."""
    (tmp_path / "a.txt").write_text("a" * length + "\n%%\n" + "b" * 10)
    file = TextFile("a.txt", tmp_path / "a.txt")
    assert split_into_ranges(file, "%%", size=10) == [FileRange(0, length + 4), FileRange(length + 4, length + 14)]
    assert split_into_ranges(file, "%", size=10) == [FileRange(0, length + 14)]


def test_what_has_to_be_read_as_a_whole_is_not_divided(tmp_path):
    line = json.dumps({"prompt": "a", "completion": "b"}) + "\n"
    (tmp_path / "a.jsonl").write_text(line * 100)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(line.encode() * 1000))
    (tmp_path / "c.txt").write_text("small\n%%\n")
    for name, supervised in [("a.jsonl", True), ("b.jsonl.gz", False), ("c.txt", False)]:
        (file,) = find_text_files([str(tmp_path / name)], DataConfig(supervised=supervised))
        assert split_into_ranges(file, "%%", size=20) is None
