"""What names stand for, what is text and what is not, and how it is read."""

import dataclasses
import gzip
import io
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lm.config.data import DataConfig, FilesConfig
from lm.corpus.survey import scan_corpus
from lm.errors import InputError, UsageError
from lm.text import compression as module
from lm.text import documents, text_files
from lm.text.compression import decode_lines, read_file_lines
from lm.text.encodings import UnreadableError, decode
from lm.text.text_files import TextFile, find_text_files, select_readable, total_text_bytes


def written(folder: Path, data: str | bytes, name: str = "corpus.txt") -> TextFile:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return TextFile(name, path)


def opened_descriptors() -> set[str]:
    return set(os.listdir("/dev/fd"))  # noqa: PTH208 (names alone)


def read(file: TextFile) -> str:
    return "".join(file.text())


class TestWrongFiles:
    @pytest.mark.parametrize("block", [1, 5, 1 << 18])
    @pytest.mark.parametrize(
        ("data", "offset", "byte"),
        [
            (b"\xffabc", 0, "ff"),
            ("한국어".encode() + b"\xe9 caf", 9, "e9"),
            (b"a" * 5000 + b"\xc3(" + b"b" * 100, 5000, "c3"),
        ],
    )
    def test_invalid_utf8_is_refused_with_its_offset(self, data, offset, byte, *, block, tmp_path, monkeypatch):
        monkeypatch.setattr(text_files, "BLOCK_BYTES", block)
        with pytest.raises(
            InputError, match=rf"corpus\.txt: not valid UTF-8 at byte offset {offset} \(0x{byte}\).*iconv"
        ):
            read(written(tmp_path, data))

    @pytest.mark.parametrize("block", [1, 5, 1 << 18])
    def test_a_file_that_ends_inside_a_character_is_cut_off(self, block, tmp_path, monkeypatch):
        monkeypatch.setattr(text_files, "BLOCK_BYTES", block)
        with pytest.raises(InputError, match=r"byte offset 6 \(0xec\): it ends inside a character"):
            read(written(tmp_path, "한국어".encode()[:-1]))

    def test_a_binary_file_is_refused(self, tmp_path):
        with pytest.raises(InputError, match=r"model\.bin: looks like a binary file \(NUL byte at offset 4\)"):
            read(written(tmp_path, b"\x7fELF\x00\x01", "model.bin"))

    def test_utf16_is_named(self, tmp_path):
        with pytest.raises(InputError, match=r"corpus\.txt: looks like UTF-16 .* \S*corpus\.txt > NEW$"):
            read(written(tmp_path, "text".encode("utf-16")))

    @pytest.mark.parametrize("order", ["le", "be"])
    def test_utf16_without_a_byte_order_mark_is_named(self, tmp_path, order):
        with pytest.raises(InputError, match=rf"looks like UTF-16{order.upper()} text") as error:
            read(written(tmp_path, "Der Löwe, said the owl – and “left”.\n".encode(f"utf-16-{order}")))
        (setting,) = error.value.settings
        assert "".encode(setting.removeprefix("encoding=")) == b""  # Python knows it


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


@pytest.mark.parametrize("offset", [0, 1, 7])
def test_a_binary_file_is_named_with_the_place_of_its_first_nul(tmp_path, offset):
    (tmp_path / "a.txt").write_bytes(b"x" * offset + b"\0\0 and more, not in UTF-8: \xff")
    (file,) = find_text_files([str(tmp_path / "a.txt")])
    with pytest.raises(InputError, match=rf"a.txt: looks like a binary file \(NUL byte at offset {offset}\)"):
        read(file)


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

    def test_a_folder_of_which_most_is_skipped_says_what_is_read(self, tmp_path):
        for name in ("NEWS.txt", "a.py", "b.py"):
            (tmp_path / name).write_text("x = 1\n")
        (note,) = find_text_files([str(tmp_path)]).notes
        assert note.startswith("only 1 .txt file read; 2 .py files not read")

    def test_what_is_skipped_is_counted_by_suffix(self, code):
        found = find_text_files([str(code)])
        assert found.skipped_suffixes == {".py": 3, ".json": 1, "": 1}
        (note,) = found.notes
        assert note.startswith("3 .py, 1 .json, 1 other files not read")
        assert note.settings == ("include=*.py",)
        for number in range(9):
            (code / f"{number}.pyc").write_bytes(b"\xa7\r\r\n\0\0")
        (note,) = find_text_files([str(code)]).notes
        assert note.startswith("3 .py, 1 .json, 10 other files not read")
        assert note.settings == ("include=*.py",)
        assert find_text_files([str(code)], reading=FilesConfig(include=("*.py",))).notes == []
        with pytest.raises(InputError, match=r"no .* file in this folder \(1 \.py file not read\)") as error:
            find_text_files([str(code / "tests")])
        assert error.value.settings == ("include=*.py",)

    def test_files_that_cannot_be_read_are_named_at_once(self, tmp_path):
        names = [str(written(tmp_path, b"a\xff\n" if n % 2 else "text\n", f"{n:02}.txt").path) for n in range(24)]
        with pytest.raises(UnreadableError, match=r"12 of 24 files .*01\.txt.*19\.txt and 2 more\. The first: .*01\.t"):
            select_readable(find_text_files(names))
        with pytest.raises(UnreadableError, match=r"12 of 24 files"):
            scan_corpus(find_text_files(names), DataConfig())
        skipping = find_text_files(names, reading=FilesConfig(skip_unreadable=True))
        assert [file.name for file in select_readable(skipping)] == names[::2]
        assert [found.file.name for found in scan_corpus(skipping, DataConfig()).files] == names[::2]

    def test_each_reason_is_given_once(self, tmp_path):
        data = [b"caf\xe9 noir\n", b"the caf\xe9 noir\n", "text".encode("utf-16"), "text".encode("utf-32"), b"a\n"]
        names = [str(written(tmp_path, each, f"{n}.txt").path) for n, each in enumerate(data)]
        with pytest.raises(UnreadableError) as error:
            select_readable(find_text_files(names))
        reasons = re.findall(r"(\d)\.txt: (.*?);", str(error.value))
        assert reasons == [
            ("0", "not valid UTF-8 at byte offset 3 (0xe9)"),
            ("2", "looks like UTF-16 text"),
            ("3", "looks like UTF-32 text"),
        ]
        assert error.value.settings == ("encoding", "encoding=utf-16", "encoding=utf-32", "skip_unreadable")

    def test_utf8_is_read_as_such_whatever_encoding_is_given(self, tmp_path):
        data = {"ascii": b"cafe", "latin": b"caf\xe9", "utf8": "café".encode(), "cut": "café".encode()[:-1]}
        for name, text in data.items():
            written(tmp_path, text, f"{name}.txt")
        found = find_text_files([str(tmp_path)], reading=FilesConfig(encoding="latin-1"))
        texts = {Path(file.name).stem: read(file) for file in found}
        assert texts == {"ascii": "cafe", "cut": "cafÃ", "latin": "café", "utf8": "café"}
        assert found.notes == [f"{tmp_path / 'utf8.txt'} is valid UTF-8 and read as UTF-8, not in the given encoding"]
        assert documents.scan_file(found[-1], "<|endoftext|>").read_as == ""
        written(tmp_path, "\ufeffa", "mark.txt")
        (note,) = find_text_files([str(tmp_path)], reading=FilesConfig(encoding="cp1252")).notes
        assert note.startswith(f"2 files ({tmp_path / 'mark.txt'}, …) are valid UTF-8")

    def test_utf16_is_named_although_another_encoding_is_given(self, tmp_path):
        path = written(tmp_path, "text".encode("utf-16")).path
        with pytest.raises(UnreadableError, match="looks like UTF-16 text"):
            select_readable(find_text_files([str(path)], reading=FilesConfig(encoding="latin-1")))

    @pytest.mark.parametrize("encoding", ["gb18030", "utf-16", "utf-8-sig", "shift_jis"])
    def test_an_encoding_is_named(self, encoding, tmp_path):
        path = written(tmp_path, "日本語\n<|endoftext|>\n中文\n".encode(encoding)).path
        (file,) = find_text_files([str(path)], reading=FilesConfig(encoding=encoding))
        found = documents.scan_file(file, "<|endoftext|>")
        assert (found.documents, found.bytes) == (2, len("日本語\n中文\n".encode()))
        with pytest.raises(UsageError, match="unknown encoding 'gb1803'.*did you mean 'gb18030'"):
            FilesConfig(encoding="gb1803")

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


@pytest.mark.parametrize(
    ("text", "encoding"),
    [("한국어 글", "cp949"), ("日本語のテキスト", "shift_jis"), ("中文的文本", "gb18030"), ("naïve café", "cp1252")],
)
def test_encodings_that_fit_are_named(text, encoding):
    convert = r"iconv -f ENCODING -t UTF-8 \S*corpus\.txt > NEW"
    with pytest.raises(InputError, match=rf"{convert}; it could be .*\b{encoding.upper()}\b"):
        decoded((text + "\n").encode(encoding))


def test_what_is_text_in_no_encoding_is_not_guessed():
    with pytest.raises(InputError, match="it may be no text at all"):
        decoded(bytes(range(254, 0, -1)))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf16_is_told_by_its_byte_order_mark(encoding):
    mark = "" if encoding == "utf-16" else "\ufeff"
    with pytest.raises(InputError, match=r"looks like UTF-16 text; convert it first: .*corpus\.txt > NEW$"):
        decoded((mark + "text").encode(encoding))


def test_text_that_ends_inside_a_character_is_cut_off():
    with pytest.raises(InputError, match=r"byte offset 6 \(0xec\): it ends inside a character"):
        decoded("한국어".encode()[:-1])
