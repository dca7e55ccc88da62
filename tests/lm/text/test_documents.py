from __future__ import annotations

import gzip
import hashlib
import io
import os
import random
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from lm.errors import InputError
from lm.text import documents
from lm.text.documents import Source

SEPARATOR = "<|endoftext|>"


def written(folder: Path, data: str | bytes, name: str = "corpus.txt") -> Source:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return Source(name, path)


def read(source: Source, separator: str = SEPARATOR) -> list[str]:
    texts: list[str] = []
    for fragment in documents.fragments(source, separator):
        if fragment.starts_document:
            texts.append("")
        texts[-1] += fragment.text
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
    def test_a_line_that_is_the_separator_ends_a_document(self, text: str, expected: list[str], tmp_path: Path) -> None:
        assert read(written(tmp_path, text)) == expected

    @pytest.mark.parametrize("block", [1, 2, 3, 7, 1000])
    def test_blocks_make_no_difference(self, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(documents, "BLOCK_BYTES", block)
        draw = random.Random(block)
        for _ in range(200):
            separator = draw.choice(["S", "<|e|>", "ab"])
            parts = [separator, "\n", f"\n{separator}\n", "\r\n", "x", "é", " ", separator[:-1], "한"]
            text = "".join(draw.choices(parts, k=draw.randrange(12)))
            assert read(written(tmp_path, text), separator) == line_by_line(text, separator)

    def test_a_document_streams_in_small_fragments(self, tmp_path: Path) -> None:
        source = written(tmp_path, "no line ends " * 100_000)
        lengths = [len(fragment.text) for fragment in documents.fragments(source, SEPARATOR)]
        assert max(lengths) <= documents.BLOCK_BYTES + len(SEPARATOR) + 2

    def test_a_byte_order_mark_is_text(self, tmp_path: Path) -> None:
        assert read(written(tmp_path, "\ufeffone")) == ["\ufeffone"]


class TestSurvey:
    def test_counts_and_hash(self, tmp_path: Path) -> None:
        data = f"é\n{SEPARATOR}\ntwo".encode()
        found = documents.survey(written(tmp_path, data), SEPARATOR)
        assert found.sha256 == hashlib.sha256(data).hexdigest()
        assert (found.size, found.documents, found.bytes) == (len(data), 2, 6)


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
    def test_invalid_utf8_is_refused_with_its_offset(
        self, data: bytes, offset: int, byte: str, *, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(documents, "BLOCK_BYTES", block)
        with pytest.raises(
            InputError, match=rf"corpus\.txt: not valid UTF-8 at byte offset {offset} \(0x{byte}\).*iconv"
        ):
            read(written(tmp_path, data))

    @pytest.mark.parametrize("block", [1, 5, 1 << 18])
    def test_a_file_that_ends_inside_a_character_is_cut_off(
        self, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(documents, "BLOCK_BYTES", block)
        with pytest.raises(InputError, match=r"byte offset 6 \(0xec\): it ends inside a character"):
            read(written(tmp_path, "한국어".encode()[:-1]))

    @pytest.mark.parametrize(
        ("text", "encoding"),
        [
            ("한국어 글", "cp949"),
            ("日本語のテキスト", "shift_jis"),
            ("中文的文本", "gb18030"),
            ("naïve café", "cp1252"),
        ],
    )
    def test_encodings_that_fit_are_named(self, text: str, encoding: str, tmp_path: Path) -> None:
        convert = r"iconv -f ENCODING -t UTF-8 \S*corpus\.txt > NEW"
        with pytest.raises(InputError, match=rf"{convert}; it could be .*\b{encoding.upper()}\b"):
            read(written(tmp_path, (text + "\n").encode(encoding)))

    def test_what_is_text_in_no_encoding_is_not_guessed(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="it may be no text at all"):
            read(written(tmp_path, bytes(range(254, 0, -1))))

    def test_a_binary_file_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"model\.bin: looks like a binary file \(NUL byte at offset 4\)"):
            read(written(tmp_path, b"\x7fELF\x00\x01", "model.bin"))

    def test_utf16_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"corpus\.txt: looks like UTF-16 .* \S*corpus\.txt > NEW$"):
            read(written(tmp_path, "text".encode("utf-16")))


class TestResolve:
    def names(self, folder: Path, patterns: list[str]) -> list[str]:
        return [source.path.relative_to(folder).as_posix() for source in documents.resolve(patterns)]

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for name in ("b.txt", "a.MD", "sub/c.text", "sub/data.csv", ".hidden/d.txt", "sub/.e.txt", "page.html"):
            written(tmp_path, name, name)
        return tmp_path

    def test_a_folder_is_its_text_files_in_order(self, folder: Path) -> None:
        assert self.names(folder, [str(folder)]) == ["a.MD", "b.txt", "sub/c.text"]

    def test_a_folder_has_json_lines_and_compressed_text_too(self, tmp_path: Path) -> None:
        taken = ["a.jsonl", "b.TXT.gz", "c.jsonl.zst", "d.xz", "e.ndjson"]
        for name in (*taken, "model.bin.gz", "source.tar.gz", "data.json", ".gz"):
            written(tmp_path, "x", name)
        assert self.names(tmp_path, [str(tmp_path)]) == taken

    def test_globs_and_names_take_any_suffix(self, folder: Path) -> None:
        assert self.names(folder, [f"{folder}/**/*.csv", f"{folder}/page.html"]) == ["sub/data.csv", "page.html"]

    def test_a_file_named_twice_is_read_once(self, folder: Path) -> None:
        assert self.names(folder, [f"{folder}/b.txt", str(folder)]) == ["b.txt", "a.MD", "sub/c.text"]

    def test_a_file_whose_name_looks_like_a_glob(self, folder: Path) -> None:
        written(folder, "x", "odd[1].txt")
        assert self.names(folder, [f"{folder}/odd[1].txt"]) == ["odd[1].txt"]

    @pytest.mark.parametrize(
        ("pattern", "message"),
        [("nowhere.txt", "nowhere.txt: no such file"), ("*.pdf", r"\*\.pdf: no file matches"), ("empty", "no .txt")],
    )
    def test_what_holds_nothing_is_named(self, pattern: str, message: str, folder: Path) -> None:
        (folder / "empty").mkdir()
        with pytest.raises(InputError, match=message):
            documents.resolve([f"{folder}/{pattern}"])

    def test_stdin_can_be_read_twice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        data = "고양이\n".encode() * 100_000
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data)))
        (source,) = documents.resolve(["-"])
        assert source.name == "stdin"
        assert "".join(read(source)).encode() == "".join(read(source)).encode() == data

    def test_a_pipe_can_be_read_twice(self) -> None:
        receiving, sending = os.pipe()
        os.write(sending, b"text")
        os.close(sending)
        (source,), (again,) = (documents.resolve([f"/dev/fd/{receiving}"]) for _ in range(2))
        os.close(receiving)
        assert read(source) == read(source) == read(again) == ["text"]


def test_files_tell_how_much_text_they_hold_unless_they_hold_something_else(tmp_path: Path) -> None:
    for name, text in (("a.txt", "abc"), ("b.txt", "ü"), ("c.jsonl", '{"text": "a"}')):
        (tmp_path / name).write_text(text)
    (tmp_path / "d.txt.gz").write_bytes(gzip.compress(b"abc"))
    found = {name: documents.resolve([str(tmp_path / name)]) for name in ("a.txt", "b.txt", "c.jsonl", "d.txt.gz")}
    assert documents.text_size([]) == 0
    assert documents.text_size(found["a.txt"] + found["b.txt"]) == 5
    assert documents.text_size(found["a.txt"] + found["c.jsonl"]) is None
    assert documents.text_size(found["d.txt.gz"] + found["a.txt"]) is None


def test_a_long_document_of_json_lines_comes_in_parts_of_which_the_first_starts_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(documents, "BLOCK_BYTES", 4)
    (tmp_path / "a.jsonl").write_text('{"text": "abcdefghij"}\n{"text": "klmn"}\n{"text": "o"}\n')
    (source,) = documents.resolve([str(tmp_path / "a.jsonl")])
    found = [(fragment.text, fragment.starts_document) for fragment in documents.fragments(source, "---")]
    assert found == [("abcd", True), ("efgh", False), ("ij", False), ("klmn", True), ("o", True)]


@pytest.mark.parametrize("offset", [0, 1, 7])
def test_a_binary_file_is_named_with_the_place_of_its_first_nul(tmp_path: Path, offset: int) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * offset + b"\0\0 and more")
    (source,) = documents.resolve([str(tmp_path / "a.txt")])
    with pytest.raises(InputError, match=rf"a.txt: looks like a binary file \(NUL byte at offset {offset}\)"):
        read(source)
