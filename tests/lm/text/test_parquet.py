"""Rows of Parquet files are documents, examples and pairs as lines of JSON are, and damage is named."""

import builtins
import hashlib
import io
import json
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lm.config.data import DataConfig, ParallelTextConfig
from lm.corpus.prepare_corpus import choose_held_out_text, prepare_corpus
from lm.corpus.text_corpus import scan_corpus, split_into_chunks
from lm.errors import InputError, UsageError
from lm.text import parquet
from lm.text.documents import read_pieces, split_into_ranges
from lm.text.examples import Example
from lm.text.parallel_text import find_parallel_texts
from lm.text.text_files import FileRange, TextFile, find_text_files, total_text_bytes
from tests.lm.corpus.preparing import byte_tokenizer
from tests.lm.corpus.test_prepare_corpus import contents

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


def test_groups_of_rows_are_parts_of_the_file(tmp_path):
    texts = [f"document {number} " * 50 for number in range(40)]
    file = written(tmp_path / "a.parquet", {"text": texts}, group=4)
    found = split_into_ranges(file, "unused", size=5000)
    assert found is not None
    assert (found[0].start, found[-1].stop) == (0, 10)
    assert 1 < len(found) < 10
    assert [text for file_range in found for text in read(file, file_range)] == texts
    assert split_into_ranges(file, "unused", size=1 << 20) is None


def test_a_corpus_is_prepared_as_lines_of_json_are(tmp_path, monkeypatch):
    texts = [f"document {number} " * (number % 7 + 1) for number in range(400)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in texts))
    written(tmp_path / "a.parquet", {"body": texts}, group=30)
    config = DataConfig(text_column="body")
    (lines,) = find_text_files([str(tmp_path / "a.jsonl")], DataConfig(text_column="body"))
    (table,) = find_text_files([str(tmp_path / "a.parquet")], DataConfig(text_column="body"))
    prepare_corpus(scan_corpus([lines], config), byte_tokenizer(), folder=tmp_path / "lines")
    monkeypatch.setattr("lm.corpus.text_corpus.CHUNK_BYTES", 3000)
    corpus = scan_corpus([table], config)
    assert len(split_into_chunks(corpus, choose_held_out_text(corpus))) > 3
    prepare_corpus(corpus, byte_tokenizer(), folder=tmp_path / "table", processes=2)
    of_lines, of_table = contents(tmp_path / "lines"), contents(tmp_path / "table")
    manifests = [json.loads(found.pop("manifest.json")) for found in (of_lines, of_table)]
    assert of_lines == of_table
    assert manifests[0]["splits"] == manifests[1]["splits"]
    data = (tmp_path / "a.parquet").read_bytes()
    (source,) = manifests[1]["sources"]
    assert (source["size"], source["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    assert total_text_bytes([table]) is None


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
