"""Rows of Parquet files are documents, examples and pairs as lines of JSON are, and damage is named."""

import builtins
import io
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lm.config.data import ParallelTextConfig
from lm.errors import InputError, UsageError
from lm.text import parquet
from lm.text.documents import read_pieces
from lm.text.examples import Example
from lm.text.parallel_text import find_parallel_texts
from lm.text.text_files import FileRange, TextFile, find_text_files

pyarrow = pytest.importorskip("pyarrow")
tables = pytest.importorskip("pyarrow.parquet")


def written(path: Path, columns: dict[str, Any], *, group: int = 1 << 20) -> TextFile:
    tables.write_table(pyarrow.table(columns), path, row_group_size=group)
    return TextFile(path.name, path)


def read(file: TextFile, file_range: FileRange | None = None) -> list[str]:
    texts: list[str] = []
    for piece in read_pieces(file, "unused", file_range=file_range):
        if piece.starts_document:
            texts.append("")
        texts[-1] += piece.text
    return texts


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "dictionary"])
def test_each_row_is_a_document_whatever_kind_of_text_it_is(kind, tmp_path):
    texts = ["one\n", "", "two é\x00", "x" * 600_000, "one\n"]
    column = pyarrow.array(texts)
    if kind == "dictionary":
        column = column.dictionary_encode()
    elif kind != "string":
        column = column.cast(getattr(pyarrow, kind)())
    file = written(tmp_path / "a.PARQUET", {"number": list(range(5)), "text": column}, group=2)
    assert read(file) == [text for text in texts if text]


def test_a_folder_has_them_too_and_a_pipe_is_known_by_its_beginning(tmp_path, monkeypatch):
    written(tmp_path / "a.parquet", {"text": ["one", "two"]})
    (file,) = find_text_files([str(tmp_path)])
    assert read(file) == ["one", "two"]
    stdin = io.BytesIO((tmp_path / "a.parquet").read_bytes())
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=stdin))
    (piped,) = find_text_files(["-"])
    assert read(piped) == read(pickle.loads(pickle.dumps(piped))) == ["one", "two"]


def test_rows_are_examples(tmp_path):
    pairs = {"prompt": ["a", "b"], "other": [1, 2], "completion": ["c", "d"]}
    file = written(tmp_path / "a.parquet", pairs)
    assert file.holds_examples
    assert list(file.examples()) == [Example("a", "c", 1), Example("b", "d", 2)]
    labelled = written(tmp_path / "b.parquet", {"text": ["a", "b"], "label": [1, 0]})
    assert list(labelled.examples()) == [Example("a", "\n1", 1), Example("b", "\n0", 2)]
    text = written(tmp_path / "c.parquet", {"text": ["a"]})
    assert not text.holds_examples
    with pytest.raises(InputError, match=r"c\.parquet: row 1: no field 'label' beside 'text'"):
        list(text.examples())


def test_rows_are_pairs(tmp_path):
    written(tmp_path / "a.parquet", {"en": ["one ", "two"], "de": ["eins", "zwei"]})
    config = ParallelTextConfig(source_column="en", target_column="de")
    (found,) = find_parallel_texts(config, pairs=[str(tmp_path / "a.parquet")])
    assert [tuple(pair[:3]) for pair in found.pairs()] == [("one", "eins", 1), ("two", "zwei", 2)]
    assert found.languages == ("en", "de")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a", None]}, r"row 2: no field 'text'; it has nothing"),
        ({"text": [1]}, r"row 1: field 'text' is not text but a number"),
        ({"text": [b"a"]}, r"row 1: field 'text' is not text but bytes"),
        ({"text": [["a"]]}, r"row 1: field 'text' is not text but a list"),
    ],
)
def test_what_is_no_text_is_named(columns, message, tmp_path):
    with pytest.raises(InputError, match=rf"^a\.parquet: {message}$"):
        read(written(tmp_path / "a.parquet", columns))


def test_columns_without_a_usual_name_are_listed(tmp_path):
    with pytest.raises(UsageError, match=r"^a\.parquet: which column holds the text\? .* the columns are 'txt', 'id'$"):
        read(written(tmp_path / "a.parquet", {"txt": ["a"], "id": [1]}))


@pytest.mark.parametrize("damage", ["end", "middle", "begin", "empty", "text"])
def test_damage_is_named(damage, tmp_path):
    file = written(tmp_path / "a.parquet", {"text": [f"{number} {hash(number)}" for number in range(9000)]})
    data = file.path.read_bytes()
    broken = {
        "end": data[:-9],
        "middle": data[:200] + b"\0" * 20_000 + data[20_200:],
        "begin": data[5000:],
        "empty": b"",
        "text": b"a text with another name",
    }
    file.path.write_bytes(broken[damage])
    with pytest.raises(InputError, match=r"^a\.parquet: a damaged Parquet file \([^\n]*\); fetch or make it again$"):
        read(file)


def test_bytes_that_are_no_utf8_are_named(tmp_path):
    column = pyarrow.array([b"fine", b"\xff\xfe"]).view(pyarrow.string())
    with pytest.raises(InputError, match=r"a\.parquet: a damaged Parquet file \(.*can't decode byte 0xff"):
        read(written(tmp_path / "a.parquet", {"text": column}))


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    file = written(tmp_path / "a.parquet", {"text": ["a"]})
    imported = builtins.__import__

    def without(name: str, *arguments: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "pyarrow":
            raise ImportError(name)
        return imported(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"a\.parquet: a Parquet file needs pyarrow: pip install pyarrow"):
        list(parquet.read_rows(file.path, ["text"], name=file.name))
