"""Line ends are line feeds, and books of Project Gutenberg can do without their licence, however the text is cut."""

from pathlib import Path

import pytest

from lm.config.data import DataConfig
from lm.text import documents
from lm.text.documents import scan_file
from lm.text.normalization import TextChanges, describe_malformed, normalize_like_training
from lm.text.text_files import find_text_files

BOOK = (
    "The Project Gutenberg eBook of Emma\n\n*** START OF THE PROJECT GUTENBERG EBOOK EMMA ***\n\nEmma Woodhouse.\n\n"
    "*** END OF THE PROJECT GUTENBERG EBOOK EMMA ***\nSection 1. Licence\n"
)


def read(folder: Path, data: str, **settings: bool) -> documents.FileSummary:
    (folder / "a.txt").write_bytes(data.encode())
    (file,) = find_text_files([str(folder / "a.txt")], DataConfig(**settings))
    return scan_file(file, "<|endoftext|>")


def text(found: documents.FileSummary) -> str:
    return "".join(piece.text for piece in documents.read_pieces(found.file, "<|endoftext|>"))


@pytest.mark.parametrize("block", [1, 2, 3, 1 << 18])
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("\ufeffa\r\nb\r\n", "a\nb\n"),
        ("a\rb\r", "a\nb\n"),
        ("a\r\nprogress 1\rprogress 2\r\n\r", "a\nprogress 1\rprogress 2\n\r"),
        ("a\r", "a\n"),
        ("a\nb", "a\nb"),
        ("", ""),
    ],
)
def test_lines_end_with_line_feeds(data, expected, block, tmp_path, monkeypatch):
    monkeypatch.setattr("lm.text.text_files.BLOCK_BYTES", block)
    found, kept = read(tmp_path, data), read(tmp_path, data, keep_line_ends=True)
    assert (text(found), text(kept)) == (expected, data)
    assert (found.bytes, kept.bytes) == (len(expected.encode()), len(data.encode()))
    assert (found.identity == kept.identity) is (data == expected)
    assert found.changes.mark is data.startswith("\ufeff")


def test_line_ends_within_rows_are_changed_and_those_between_are_no_text(tmp_path):
    (tmp_path / "a.csv").write_bytes(b'text,n\r\n"a\r\nb",1\r\nc,2\r\n')
    (tmp_path / "b.csv").write_bytes(b"text,n\r\na,1\r\n")
    inside, between = find_text_files([str(tmp_path / "a.csv"), str(tmp_path / "b.csv")])
    assert list(inside.documents()) == ["a\nb", "c"]
    changed = [scan_file(file, "<|endoftext|>").changes.line_ends for file in (inside, between)]
    assert changed == [True, False]
    (kept,) = find_text_files([str(tmp_path / "a.csv")], DataConfig(keep_line_ends=True))
    assert list(kept.documents()) == ["a\r\nb", "c"]


@pytest.mark.parametrize("block", [100, 1 << 18])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_text_of_a_book_is_what_stands_between_its_markers(block, end, tmp_path, monkeypatch):
    monkeypatch.setattr("lm.text.text_files.BLOCK_BYTES", block if block > 1000 else 1 << 12)
    data = (BOOK * 3).replace("\n", end) if block > 1000 else (BOOK + "x\n" * 9000).replace("\n", end)
    plain, stripped = read(tmp_path, data), read(tmp_path, data, strip_gutenberg=True)
    assert plain.changes.is_book
    assert text(plain) == data.replace("\r\n", "\n")
    assert text(stripped) == "\nEmma Woodhouse.\n\n" * (3 if block > 1000 else 1)
    assert plain.identity != stripped.identity


def test_another_text_is_no_book(tmp_path):
    found = read(tmp_path, "Project Gutenberg is a library.\n*** START ***\n", strip_gutenberg=True)
    assert not found.changes.is_book
    assert text(found).startswith("Project")


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (1, "1 malformed row is left out (line 1)"),
        (2, "2 malformed rows are left out (lines 1, 2)"),
        (10, "10 malformed rows are left out (lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)"),
        (1011, "1,011 malformed rows are left out (lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, …)"),
    ],
)
def test_ten_malformed_rows_are_named(count, said):
    changes = TextChanges()
    for number in range(1, count + 1):
        changes.skip_malformed(number)
    assert describe_malformed("a.csv", changes, unit="line") == f"a.csv: {said}"


def test_a_prompt_is_normalised_as_the_training_data_were():
    text = "\ufeffone\r\ntwo\rthree"
    assert normalize_like_training(text, DataConfig()) == "one\ntwo\rthree"
    assert normalize_like_training("one\rtwo", DataConfig()) == "one\ntwo"
    assert normalize_like_training(text, DataConfig(keep_line_ends=True)) == text
