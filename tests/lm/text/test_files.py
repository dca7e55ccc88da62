"""What names stand for, what is text and what is not, and how it is read."""

import dataclasses
import gzip
import io
import os
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lm.config.data import DataConfig, FilesConfig
from lm.errors import InputError
from lm.text import compression as module
from lm.text import text_files
from lm.text.compression import decode_lines, read_file_lines
from lm.text.encodings import decode
from lm.text.text_files import TextFile, find_text_files, total_text_bytes


def written(folder: Path, data: str | bytes, name: str = "corpus.txt") -> TextFile:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return TextFile(name, path)


def opened_descriptors() -> set[str]:
    return set(os.listdir("/dev/fd"))  # noqa: PTH208 (names alone)


def read(file: TextFile) -> str:
    return "".join(file.text())


class TestResolve:
    def names(self, folder: Path, patterns: list[str]) -> list[str]:
        return [file.path.relative_to(folder).as_posix() for file in find_text_files(patterns)]

    @pytest.fixture
    def folder(self, tmp_path) -> Path:
        for name in ("b.txt", "a.MD", "sub/c.text", "sub/data.csv", ".hidden/d.txt", "sub/.e.txt", "page.html"):
            written(tmp_path, name, name)
        return tmp_path

    def test_a_folder_is_its_text_files_in_order(self, folder):
        assert self.names(folder, [str(folder)]) == ["a.MD", "b.txt", "sub/c.text", "sub/data.csv"]

    def test_a_folder_has_json_lines_and_compressed_text_too(self, tmp_path):
        taken = ["a.jsonl", "b.TXT.gz", "c.jsonl.zst", "d.xz", "e.ndjson"]
        for name in (*taken, "model.bin.gz", "file.tar.gz", "data.json", ".gz"):
            written(tmp_path, "x", name)
        assert self.names(tmp_path, [str(tmp_path)]) == taken

    def test_globs_and_names_take_any_suffix(self, folder):
        assert self.names(folder, [f"{folder}/**/*.csv", f"{folder}/page.html"]) == ["sub/data.csv", "page.html"]

    def test_a_file_named_twice_is_read_once(self, folder):
        assert self.names(folder, [f"{folder}/b.txt", str(folder)]) == ["b.txt", "a.MD", "sub/c.text", "sub/data.csv"]

    def test_a_file_whose_name_looks_like_a_glob(self, folder):
        written(folder, "x", "odd[1].txt")
        assert self.names(folder, [f"{folder}/odd[1].txt"]) == ["odd[1].txt"]

    @pytest.mark.parametrize(
        ("pattern", "message"),
        [("nowhere.txt", "nowhere.txt: no such file"), ("*.pdf", r"\*\.pdf: no file matches"), ("empty", "no .txt")],
    )
    def test_what_holds_nothing_is_named(self, pattern, message, folder):
        (folder / "empty").mkdir()
        with pytest.raises(InputError, match=message):
            find_text_files([f"{folder}/{pattern}"])

    def test_stdin_can_be_read_twice(self, monkeypatch):
        data = "고양이\n".encode() * 100_000
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data)))
        (file,) = find_text_files(["-"])
        assert file.name == "stdin"
        assert read(file).encode() == read(file).encode() == data

    def test_the_copy_of_stdin_is_closed_at_once_and_deleted_with_the_last_that_refers_to_it(self, monkeypatch):
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"text")))
        text_files._copy_stdin.cache_clear()
        before = opened_descriptors()
        (file,) = find_text_files(["-"])
        assert opened_descriptors() == before
        path, other = file.path, dataclasses.replace(file, data=DataConfig(text_column="body"))
        text_files._copy_stdin.cache_clear()
        del file
        assert read(other) == "text"
        del other
        assert not path.exists()

    def test_what_python_leaves_open_at_its_end_is_deleted_without_a_warning(self, tmp_path):
        program = "from lm.text.text_files import find_text_files; print(find_text_files(['-'])[0].path)"
        told = subprocess.run(
            [sys.executable, "-W", "error", "-c", program], input="text", capture_output=True, text=True,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )  # fmt: skip
        assert Path(told.stdout.strip()).parent == tmp_path
        assert (told.stderr, list(tmp_path.iterdir())) == ("", [])

    def test_a_pipe_can_be_read_twice(self):
        receiving, sending = os.pipe()
        os.write(sending, b"text")
        os.close(sending)
        (file,), (again,) = (find_text_files([f"/dev/fd/{receiving}"]) for _ in range(2))
        os.close(receiving)
        assert read(file) == read(file) == read(again) == "text"


def test_files_tell_how_much_text_they_hold_unless_they_hold_something_else(tmp_path):
    for name, text in (("a.txt", "abc"), ("b.txt", "ü"), ("c.jsonl", '{"text": "a"}')):
        (tmp_path / name).write_text(text)
    (tmp_path / "d.txt.gz").write_bytes(gzip.compress(b"abc"))
    found = {name: find_text_files([str(tmp_path / name)]) for name in ("a.txt", "b.txt", "c.jsonl", "d.txt.gz")}
    assert total_text_bytes([]) == 0
    assert total_text_bytes(found["a.txt"] + found["b.txt"]) == 5
    assert total_text_bytes(found["a.txt"] + found["c.jsonl"]) is None
    assert total_text_bytes(found["d.txt.gz"] + found["a.txt"]) is None


class TestSelection:
    @pytest.fixture
    def code(self, tmp_path) -> Path:
        for name in ("a.py", "b/c.py", "b/d.txt", "tests/e.py", ".git/f.py", "g.json", "h.csv", "Makefile"):
            written(tmp_path, "text\n1\n", name)
        written(tmp_path, '[{"text": "a"}]', "i.json")
        return tmp_path

    @pytest.mark.parametrize(
        ("reading", "names"),
        [
            (FilesConfig(), ["b/d.txt", "h.csv", "i.json"]),
            (FilesConfig(include=("*.py",)), ["a.py", "b/c.py", "tests/e.py"]),
            (FilesConfig(include=("*.py", "Make*"), exclude=("tests",)), ["Makefile", "a.py", "b/c.py"]),
            (FilesConfig(include=("b/*",)), ["b/c.py", "b/d.txt"]),
            (FilesConfig(exclude=("*.json", "b/*")), ["h.csv"]),
        ],
    )
    def test_globs_choose_files_of_a_folder(self, reading, names, code):
        found = find_text_files([str(code)], reading=reading)
        assert [file.path.relative_to(code).as_posix() for file in found] == names

    @pytest.mark.parametrize(
        ("kind", "data", "expected"),
        [
            ("csv", "text,n\na,1\n", ["a"]),
            ("tsv", "text\tn\na\t1\n", ["a"]),
            ("json", '[{"text": "a"}]', ["a"]),
            ("jsonl", '{"text": "a"}\n', ["a"]),
        ],
    )
    def test_stdin_and_odd_suffixes_have_the_format_that_is_named(self, kind, data, expected, tmp_path, monkeypatch):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data.encode())))
        odd = written(tmp_path, data, "data.bin").path
        for file in find_text_files(["-", str(odd)], reading=FilesConfig(format=kind)):
            assert list(file.documents()) == expected
        (text,) = find_text_files([str(written(tmp_path, data, "a.csv").path)], reading=FilesConfig(format="text"))
        assert read(text) == data


def test_a_line_ends_at_its_line_feed_and_nowhere_else():
    text = "one\ntwo\r\n\n\u2028three\x0b\x0c\x85 \r four\n\nlast"
    expected = ["one", "two", "", "\u2028three\x0b\x0c\x85 \r four", "", "last"]
    data = b"\xef\xbb\xbf" + text.encode()
    for size in range(1, len(data) + 1):
        parts = [data[start : start + size] for start in range(0, len(data), size)]
        assert list(decode_lines(parts, name="x")) == expected
    assert list(decode_lines([data + b"\n"], name="x")) == expected
    assert list(decode_lines([], name="x")) == []
    assert list(decode_lines([b"\n\n"], name="x")) == ["", ""]


def test_there_are_as_many_lines_as_wc_counts():
    chance = random.Random(3)
    for _ in range(200):
        text = "".join(chance.choices("a\né ", k=chance.randint(0, 30))) + "\n"
        assert len(list(decode_lines([text.encode()], name="x"))) == text.count("\n")


def test_a_line_is_there_before_the_next_one_comes():
    def parts():
        yield b"one\n"
        raise AssertionError("read too far")

    assert next(decode_lines(parts(), name="x")) == "one"


def test_what_is_no_utf_8_is_named():
    with pytest.raises(InputError, match="stdin: line 3 is not valid UTF-8 .at its byte 1."):
        list(decode_lines([b"one\ntwo\na\xff\n"], name="stdin"))


def test_files_may_be_compressed(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one\ntwo"))
    assert list(read_file_lines(tmp_path / "a.txt.gz")) == ["one", "two"]
    with pytest.raises(InputError, match="no such file"):
        list(read_file_lines(tmp_path / "none"))


def test_a_line_that_is_too_long_is_named(monkeypatch):
    monkeypatch.setattr(module, "_MAX_LINE_BYTES", 5)
    assert list(decode_lines([b"12345\n", b"123", b"45"], name="x")) == ["12345", "12345"]
    for parts in ([b"a\n123", b"456"], [b"a\n123456"]):
        with pytest.raises(InputError, match="x: line 2 is longer than"):
            list(decode_lines(parts, name="x"))


def test_a_last_line_that_is_no_utf_8_is_named_too():
    with pytest.raises(InputError, match="x: line 2 is not valid UTF-8 .at its byte 0."):
        list(decode_lines([b"one\n\xff"], name="x"))


def decoded(data: bytes) -> str:
    return decode(data, name="corpus.txt")


def test_utf8_is_decoded_as_it_is():
    assert decoded("\ufeff한국어 é🙂\r\n".encode()) == "\ufeff한국어 é🙂\r\n"
