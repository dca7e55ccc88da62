"""CSV and TSV have the rows that were written, whatever their quotes, delimiters and line ends."""

import csv
import io
import random
from pathlib import Path

import pytest

from lm.config.data import DataConfig, FilesConfig
from lm.text.csv_tsv import parse_rows
from lm.text.text_files import TextFile, find_text_files


def written(folder: Path, data: str | bytes, name: str, **reading: object) -> TextFile:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return TextFile(name, path, DataConfig(), FilesConfig(**reading))


def read(text: str, kind: str, *, header: bool = True, block: int = 1 << 18) -> list[dict[str, str]]:
    blocks = [text[start : start + block] for start in range(0, len(text), block)]
    return [dict(row.values) for row in parse_rows(blocks, name="a.csv", kind=kind, header=header)]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("block", [1, 7, 1 << 18])
def test_what_is_written_is_read(delimiter, block):
    draw = random.Random(3)
    table = [
        {name: "".join(draw.choices('ab,;\t|"\n é', k=draw.randrange(1, 30))) + "." for name in ("text", "label")}
        for _ in range(100)
    ]
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, ("text", "label"), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(table)
    assert read("\ufeff" + file.getvalue(), "csv", block=block) == table


def test_a_long_field_is_read():
    assert read('text\n"' + "a" * 1_000_000 + '"\n', "csv") == [{"text": "a" * 1_000_000}]


def test_quotes_of_tsv_are_letters_unless_they_enclose_a_field():
    text = 'ham\t"Hi, I\'m here\nspam\t"Call ""now"""\nham\tsay "yes"\n\n'
    assert [row["2"] for row in read(text, "tsv", header=False)] == ["\"Hi, I'm here", 'Call "now"', 'say "yes"']


class TestColumns:
    def test_the_usual_names_are_found(self, tmp_path):
        file = written(tmp_path, "id,Review,sentiment\n1,good,pos\n", "a.csv")
        assert list(file.documents()) == ["good"]
        assert [(each.prompt, each.completion) for each in file.examples()] == [("good", "\npos")]

    def test_a_column_has_a_name_or_a_number(self, tmp_path):
        path = written(tmp_path, "a,b\nx,y\n", "a.csv").path
        for wanted in ("b", "2"):
            (file,) = find_text_files([str(path)], DataConfig(text_column=wanted))
            assert list(file.documents()) == ["y"]

    def test_of_two_columns_the_other_is_the_text(self, tmp_path):
        file = written(tmp_path, "what,label\ngood,pos\n", "a.csv")
        assert [(each.prompt, each.completion) for each in file.examples()] == [("good", "\npos")]

    def test_without_a_header_columns_are_numbers(self, tmp_path):
        path = written(tmp_path, "ham\thello\nspam\tcall\n", "sms.tsv").path
        (file,) = find_text_files([str(path)], DataConfig(text_column="2", label_column="1"), FilesConfig(header=False))
        assert [(each.prompt, each.completion) for each in file.examples()] == [("hello", "\nham"), ("call", "\nspam")]


@pytest.mark.parametrize("block", [1, 5, 1 << 18])
def test_a_json_array_has_its_objects(block, tmp_path, monkeypatch):
    monkeypatch.setattr("lm.text.text_files.BLOCK_BYTES", block)
    file = written(tmp_path, ' [ {"text": "a\\"]"} ,\n{"text": "é, {}", "n": [1, {"b": 2}]}]\n', "a.json")
    assert list(file.documents()) == ['a"]', "é, {}"]
    assert list(written(tmp_path, "[]", "empty.json").documents()) == []
    assert list(written(tmp_path, '{"text": "a"}\n{"text": "b"}\n', "lines.json").documents()) == ["a", "b"]


def test_a_long_array_is_read_in_little_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("lm.text.text_files.BLOCK_BYTES", 1000)
    monkeypatch.setattr("lm.text.json_lines.MAX_LINE_CHARACTERS", 5000)
    record = '{"text": "' + "a" * 900 + '"}'
    file = written(tmp_path, "[" + ",\n".join([record] * 2000) + "]", "a.json")
    assert sum(map(len, file.documents())) == 900 * 2000


@pytest.mark.parametrize("names", ["prompt,completion", "completion,note,prompt", "label,text", "note,text,label"])
def test_tables_with_the_columns_of_examples_need_no_fields(tmp_path, names):
    assert written(tmp_path, f"{names}\n", "a.csv").label_fields is None
