"""The same records from the same text in every format; rows of other kinds; line ends, encodings and errors."""

import csv
import gzip
import json
import lzma
import random

import pyarrow
import pytest
from pyarrow import parquet

from lm.config.data import DataConfig, FilesConfig
from lm.errors import InputError, UsageError
from lm.text import text_files
from lm.text.conversations import Message
from lm.text.documents import read_pieces
from lm.text.text_files import find_text_files, select_readable

DRAW = random.Random(3)
TEXTS = ["".join(DRAW.choices('abé,;"\t 한\n', k=DRAW.randrange(1, 60))) + "." for _ in range(40)]


def write(folder, name, rows):
    """A file of rows of the format that its name says."""
    path = folder / name
    if name.endswith(".jsonl"):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif name.endswith(".json"):
        path.write_text(json.dumps(rows, indent=1))
    elif name.endswith(".parquet"):
        parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=7)
    else:
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(rows[0])
            writer.writerows(row.values() for row in rows)
    return path


def read(path, data=None, reading=None):
    (file,) = find_text_files([str(path)], data, reading)
    return file


def documents(path, data=None, reading=None, separator="<|endoftext|>"):
    found = []
    for piece in read_pieces(read(path, data, reading), separator):
        found += [piece.text] if piece.starts_document else []
        found[-1] += "" if piece.starts_document else piece.text
    return found


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.parquet"])
@pytest.mark.parametrize("block", [7, 1 << 18])
def test_every_format_has_the_same_documents(tmp_path, monkeypatch, name, block):
    monkeypatch.setattr(text_files, "BLOCK_BYTES", block)
    path = write(tmp_path, name, [{"id": str(number), "text": text} for number, text in enumerate(TEXTS)])
    assert documents(path) == TEXTS
    named = write(tmp_path, name, [{"x": text, "y": "no"} for text in TEXTS])
    for column in ("x", "z,x"):
        assert documents(named, DataConfig(text_column=column)) == TEXTS
    with pytest.raises((UsageError, InputError), match="x"):
        documents(named)


@pytest.mark.parametrize("block", [1, 5, 1 << 18])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_text_is_divided_at_separator_lines(tmp_path, monkeypatch, block, end):
    monkeypatch.setattr(text_files, "BLOCK_BYTES", block)
    parts = ["one\ntwo", "---not", "  three"]
    path = tmp_path / "a.txt"
    path.write_bytes(f"{end}---{end}".join(parts).replace("one\ntwo", f"one{end}two").encode())
    assert documents(path, separator="---") == ["one\ntwo\n", "---not\n", "  three"]
    assert documents(path, separator="none") == ["one\ntwo\n---\n---not\n---\n  three"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.parquet"])
def test_examples_of_all_forms(tmp_path, name):
    supervised = DataConfig(supervised=True)
    forms = [
        [{"prompt": "p", "completion": "c"}, ("p", "c")],
        [{"text": "p", "label": "c"}, ("p", "\nc")],
        [{"instruction": "do", "input": "it", "output": "c"}, ("do\nit", "\nc")],
    ]
    for row, expected in forms:
        examples = list(read(write(tmp_path, name, [row, row]), supervised).examples())
        assert [example.texts for example in examples] == [expected] * 2
    columns = DataConfig(supervised=True, text_column="review", label_column="stars")
    found = read(write(tmp_path, name, [{"review": "p", "stars": "5"}]), columns)
    assert [example.label for example in found.examples()] == ["5"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet"])
def test_conversations_of_both_forms(tmp_path, name):
    openai = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u\r\n"},
        {"role": "assistant", "content": "a"},
    ]
    sharegpt = [{"from": "human", "value": "u\r\n"}, {"from": "gpt", "value": "a"}]
    expected = (Message("system", "s"), Message("user", "u\n"), Message("assistant", "a"))
    for row, start in (({"messages": openai}, 0), ({"conversations": sharegpt}, 1)):
        file = read(write(tmp_path, name, [row]), DataConfig(supervised=True))
        assert file.holds_conversations
        assert [one.messages for one in file.conversations()] == [expected[start:]]


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [("user", "a")],
        [("assistant", "a")],
        [("user", "a"), ("user", "b"), ("assistant", "c")],
        [("user", " "), ("assistant", "c")],
        [("robot", "a"), ("assistant", "c")],
    ],
)
def test_a_malformed_conversation_is_refused_with_its_line_or_skipped(tmp_path, messages):
    good = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    bad = [{"role": role, "content": text} for role, text in messages]
    path = write(tmp_path, "a.jsonl", [{"messages": good}, {"messages": bad}, {"messages": good}])
    with pytest.raises(InputError, match=r"a\.jsonl: line 2: "):
        list(read(path).conversations())
    file = read(path, reading=FilesConfig(skip_malformed=True))
    assert len(list(file.conversations())) == 2
    assert file.malformed_rows == {2}


@pytest.mark.parametrize("line", ["{", "[1]", '{"other": "x"}', '{"text": 3}', '{"text": "\\ud800"}'])
def test_a_malformed_row_is_refused_with_its_line_or_skipped(tmp_path, line):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "one"}}\n\n{line}\n{{"text": "two"}}')
    with pytest.raises(InputError, match=r"a\.jsonl: line 3: "):
        documents(path)
    assert documents(path, reading=FilesConfig(skip_malformed=True)) == ["one", "two"]


def test_line_ends_marks_and_books_are_normalised_unless_kept(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\r\ntwo\rthree\r\n".encode())
    assert documents(path) == ["one\ntwo\rthree\n"]
    assert documents(path, DataConfig(keep_line_ends=True)) == ["\ufeffone\r\ntwo\rthree\r\n"]
    path.write_bytes(b"one\rtwo\r")
    assert documents(path) == ["one\ntwo\n"]
    book = (
        "Head\n*** START OF THE PROJECT GUTENBERG EBOOK X ***\nText\n*** END OF THE PROJECT GUTENBERG EBOOK X ***\nend"
    )
    path.write_text(book)
    assert documents(path, DataConfig(strip_gutenberg=True)) == ["Text\n"]
    assert documents(path) == [book]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_a_byte_order_mark_says_the_encoding(tmp_path, encoding):
    path = tmp_path / "a.txt"
    path.write_bytes("naïve 한국어\n".encode(encoding))
    assert documents(path) == ["naïve 한국어\n"]


def test_a_given_encoding_is_used_and_other_bytes_are_refused(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("naïve".encode("cp1252"))
    assert documents(path, reading=FilesConfig(encoding="cp1252")) == ["naïve"]
    with pytest.raises(InputError, match=r"a\.txt: not valid utf-8 at byte offset 2"):
        documents(path)
    path.write_bytes(b"a\0b")
    with pytest.raises(InputError, match="binary"):
        documents(path)


def test_unreadable_files_are_refused_or_skipped(tmp_path):
    for name, data in (("a.txt", b"good"), ("b.txt", b"\xff\xff bad"), ("c.txt.gz", b"\x1f\x8b bad")):
        (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match="not valid utf-8"):
        select_readable(find_text_files([str(tmp_path)]))
    kept = select_readable(find_text_files([str(tmp_path)], None, FilesConfig(skip_unreadable=True)))
    assert [file.path.name for file in kept] == ["a.txt"]


def test_folders_globs_and_compressed_files_are_found(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "below" / "b.md").write_text("b")
    (tmp_path / "below" / "c.py").write_text("c")
    (tmp_path / ".hidden.txt").write_text("h")
    (tmp_path / "d.txt.gz").write_bytes(gzip.compress(b"d"))
    (tmp_path / "e.txt.xz").write_bytes(lzma.compress(b"e"))

    def found(*names, **reading):
        files = find_text_files([str(tmp_path / name) for name in names], None, FilesConfig(**reading))
        return "".join("".join(file.text()) for file in files)

    assert found("") == "abde"
    assert found("**/*.py", "a.txt", "a.txt") == "ca"
    assert found("", include=("*.py", "a.*")) == "ac"
    assert found("", exclude=("below", "*.xz")) == "ad"
    with pytest.raises(InputError, match="no such file"):
        found("missing.txt")
