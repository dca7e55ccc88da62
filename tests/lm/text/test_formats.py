"""The same records from the same text in every format; kinds of rows; line ends, encodings and errors."""

import csv
import json
import random

import pyarrow
import pytest
from pyarrow import parquet

from lm.config.run_config import DataConfig, FilesConfig
from lm.errors import InputError, UsageError
from lm.text import Part, Record, decode
from lm.text.find import find_text_files

NAMES = ["a.jsonl", "a.json", "a.csv", "a.parquet"]
in_every_format = pytest.mark.parametrize("name", NAMES)
DRAW = random.Random(3)
TEXTS = ["".join(DRAW.choices('abé,;"\t 한\n', k=DRAW.randrange(1, 60))) + "." for _ in range(40)]


def write(folder, name, rows):
    """A file of rows of the format that its name says."""
    path = folder / name
    if name.endswith(".jsonl"):
        path.write_text("\n\n".join(json.dumps(row) for row in rows))
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


def read(path, data=None, **reading):
    (file,) = find_text_files([str(path)], data, FilesConfig(**reading))
    return file


def documents(path, data=None, **reading):
    found = []
    for record in read(path, data, **reading).records():
        found += [record.text] if record.starts else []
        found[-1] += "" if record.starts else record.text
    return found


@in_every_format
@pytest.mark.parametrize("block", [7, 1 << 18])
def test_every_format_has_the_same_documents(tmp_path, monkeypatch, name, block):
    monkeypatch.setattr(decode.read_stream, "__defaults__", (block,))
    path = write(tmp_path, name, [{"id": str(number), "text": text} for number, text in enumerate(TEXTS)])
    assert documents(path) == TEXTS
    (tmp_path / "a.txt").write_text("".join(f"{text}\n<|endoftext|>\n" for text in TEXTS))
    assert documents(tmp_path / "a.txt") == [f"{text}\n" for text in TEXTS]
    named = write(tmp_path, name, [{"x": text, "y": "no"} for text in TEXTS])
    for column in ("x", "z,x"):
        assert documents(named, DataConfig(text_column=column)) == TEXTS
    with pytest.raises(UsageError, match="x, y"):
        documents(named)


def test_two_thousand_random_unicode_strings_survive_every_format(tmp_path):
    points = [point for point in range(1, 0x110000) if not 0xD800 <= point < 0xE000 and point != 13]
    texts = ["".join(map(chr, DRAW.choices(points, k=DRAW.randrange(1, 30)))) for _ in range(2000)]
    for name in NAMES:
        path = write(tmp_path, name, [{"id": "1", "text": text} for text in texts])
        assert documents(path) == texts


@pytest.mark.parametrize("block", [1, 5, 1 << 18])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_text_is_divided_at_separator_lines(tmp_path, monkeypatch, block, end):
    monkeypatch.setattr(decode.read_stream, "__defaults__", (block,))
    parts = ["one\ntwo", "---not", "  three"]
    path = tmp_path / "a.txt"
    path.write_bytes(f"{end}---{end}".join(parts).replace("one\ntwo", f"one{end}two").encode())
    assert documents(path, DataConfig(separator="---")) == ["one\ntwo\n", "---not\n", "  three"]
    assert documents(path, DataConfig(separator="none")) == ["one\ntwo\n---\n---not\n---\n  three"]


@in_every_format
@pytest.mark.parametrize(
    ("row", "data", "expected"),
    [
        ({"prompt": "p", "note": "n", "completion": "c"}, {}, ("p", "c")),
        ({"instruction": "do", "input": "it", "output": "c"}, {}, ("do\nit", "\nc")),
        ({"text": "p", "label": "c"}, {"label_column": "label"}, ("p", "\nc")),
    ],
)
def test_examples(tmp_path, name, row, data, expected):
    file = read(write(tmp_path, name, [row, row]), DataConfig(**data))
    assert file.kind == "examples"
    line = {"a.jsonl": 3, "a.csv": 3}.get(name, 2)
    assert [*file.records()][1] == Record.of_example(*expected, line=line)


def test_a_null_in_the_first_row_is_a_malformed_row(tmp_path):
    rows = [{"prompt": "p", "completion": None}, {"prompt": "p", "completion": "c"}]
    file = read(write(tmp_path, "a.jsonl", rows), skip_malformed=True)
    assert [record.parts[-1].text for record in file.records()] == ["c"]


PAIR = {"source": "Two dogs.", "target": "Zwei Hunde."}


@in_every_format
@pytest.mark.parametrize(
    ("row", "data", "languages"),
    [
        ({"id": "1", **PAIR}, {}, (None, None)),
        ({"en": PAIR["source"], "de": PAIR["target"]}, {}, ("en", "de")),
        (
            {"text": "x", "de": PAIR["target"], "english": PAIR["source"]},
            {"source_column": "english", "target_column": "2"},
            (None, "de"),
        ),
    ],
)
def test_pairs(tmp_path, name, row, data, languages):
    path = write(tmp_path, name, [row, row])
    file = read(path, DataConfig(**data))
    assert (file.kind, file.languages) == ("pairs", languages)
    assert [record.to_json() for record in file.records()] == [json.dumps(PAIR)] * 2
    plain = read(path, DataConfig(**data, text_column="2"))
    assert (plain.kind, plain.languages) == ("text", (None, None))


def test_two_columns_without_names_are_a_pair_and_a_malformed_row_is_refused(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("Two dogs.\tZwei Hunde.\r\n\tleer\n")
    pairs = [(record.source, record.text) for record in read(path, header=False).records()]
    assert pairs == [("Two dogs.", "Zwei Hunde."), ("", "leer")]
    path.write_text("en\tde\na\tb\nno tab\n")
    with pytest.raises(InputError, match=r"pairs\.tsv: line 3: "):
        [*read(path).records()]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet"])
def test_conversations_of_both_forms(tmp_path, name):
    openai = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u\r\n"},
        {"role": "assistant", "content": "a"},
    ]
    sharegpt = [{"from": "human", "value": "u\r\n"}, {"from": "gpt", "value": "a"}]
    expected = (Part("system", "s"), Part("user", "u\n"), Part("assistant", "a"))
    for row, start in (({"messages": openai}, 0), ({"conversations": sharegpt}, 1)):
        file = read(write(tmp_path, name, [row]))
        assert file.kind == "conversations"
        assert [record.parts for record in file.records()] == [expected[start:]]
    again = tmp_path / "again.jsonl"
    again.write_text(next(file.records()).to_json())
    assert list(read(again).records()) == list(file.records())


GOOD = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


@pytest.mark.parametrize(
    ("good", "line"),
    [
        ({"text": "one"}, "{"),
        ({"text": "one"}, '{"other": "x"}'),
        ({"text": "one"}, '{"text": 3}'),
        ({"text": "one"}, '{"text": "\\ud800"}'),
        ({"prompt": "a", "completion": "b"}, '{"prompt": "a", "completion": ""}'),
        ({"messages": GOOD}, json.dumps({"messages": GOOD[:1]})),
        ({"messages": GOOD}, json.dumps({"messages": [{"role": "user", "content": " "}, GOOD[1]]})),
    ],
)
def test_a_malformed_row_is_refused_with_its_line_or_skipped(tmp_path, good, line):
    path = tmp_path / "a.jsonl"
    path.write_text(f"{json.dumps(good)}\n\n{line}\n{json.dumps(good)}")
    with pytest.raises(InputError, match=r"a\.jsonl: line 3: "):
        list(read(path).records())
    file = read(path, skip_malformed=True)
    assert [record.line for record in file.records()] == [1, 4]
    assert file.skipped.keys() == {3}


def test_unreadable_files_are_refused_or_skipped_from_where_they_are(tmp_path):
    for name, data in (("a.txt", b"good"), ("b.txt", b"\xff\xff bad"), ("c.gz", b"\x1f\x8b bad"), ("d.txt", b"a\0b")):
        path = tmp_path / name
        path.write_bytes(data)
        file = read(path, skip_malformed=True)
        assert [record.text for record in file.records()] == ["good"] * (name == "a.txt")
        assert len(file.notes) == (name != "a.txt")
        if name != "a.txt":
            with pytest.raises(InputError, match=name):
                documents(path)


def test_a_given_encoding_and_format_are_used(tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes("text,n\nnaïve,1\n".encode("cp1252"))
    assert documents(path, encoding="cp1252", format="csv") == ["naïve"]
    with pytest.raises(InputError, match=r"data\.bin: not valid utf-8 at byte offset 9"):
        documents(path)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_csv_is_read_as_it_is_written(tmp_path, delimiter):
    path = tmp_path / "a.csv"
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerows([["id", "Review"], *([str(number), text] for number, text in enumerate(TEXTS))])
    assert documents(path) == TEXTS


def test_tables_without_a_header_have_numbered_columns_and_quotes_of_tsv_are_text(tmp_path):
    path = tmp_path / "sms.tsv"
    path.write_text('ham\t"Hi, I\'m here\n\nspam\t"Call ""now"""\n')
    assert documents(path, DataConfig(text_column="2"), header=False) == ["\"Hi, I'm here", '"Call ""now"""']


def test_a_row_has_as_many_fields_as_the_first_one(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('text,n\none,1\ntwo\n"a"b,2\nthree,3\n')
    with pytest.raises(InputError, match=r"a\.csv: line 3: 1 fields"):
        documents(path)
    assert documents(path, skip_malformed=True) == ["one", "three"]


def test_json_arrays(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(' [ {"text": "a\\"]"} ,\n{"text": "é, {}", "n": [1, {"b": 2}]}]\n')
    assert documents(path) == ['a"]', "é, {}"]
    path.write_text('{"text": "a"}\n{"text": "b"}\n')
    assert documents(path) == ["a", "b"]
    path.write_text('[{"text": "a"}, {"text": ')
    with pytest.raises(InputError, match=r"a\.json: row 1: "):
        documents(path)
