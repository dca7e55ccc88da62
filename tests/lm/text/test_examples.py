"""An example has one of three forms; a line with none is named."""

import json

import pytest

from lm.config.data import DataConfig
from lm.errors import InputError, UsageError
from lm.text.examples import Example
from lm.text.text_files import find_text_files
from tests.lm.corpus.small_examples import PAIRS, lines, source


def test_both_forms_are_examples(tmp_path):
    text = lines([("a", "b")]) + "\n" + lines([("It rains.", "sad")], "text", "label") + '{"text": "x", "label": 1.5}\n'
    assert list(source(tmp_path, text).examples()) == [
        Example("a", "b", 1),
        Example("It rains.", "\nsad", 3),
        Example("x", "\n1.5", 4),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"prompt": "a", "complete": "b"}, r"no field 'completion' \(did you mean 'complete'\?\) beside 'prompt'"),
        ({"completion": "b", "promt": "a"}, r"no field 'prompt' \(did you mean 'promt'\?\)"),
        ({"text": "a"}, r"no field 'label' beside 'text'"),
        ({"label": "a", "body": ""}, r"no field 'text' beside 'label'"),
        ({"question": "a", "answer": "b"}, r"needs 'prompt' and 'completion', .*; it has question, answer"),
        ({}, r"needs 'prompt' and 'completion', 'text' and 'label', or 'instruction' and 'output'; it has nothing"),
        ({"instruction": "a", "input": "b"}, r"no field 'output' beside 'instruction'"),
        ({"instruction": "a", "output": ""}, r"field 'output' is empty"),
        ({"instruction": "a", "input": 1, "output": "b"}, r"field 'input' is not text but a number"),
        ({"prompt": "", "completion": "", "text": "", "label": ""}, r"has prompt, completion, .*not both"),
        ({"prompt": "a", "completion": ""}, r"field 'completion' is empty"),
        ({"text": "a", "label": ""}, r"field 'label' is empty"),
        ({"text": "a", "label": None}, r"no field 'label' beside 'text'"),
        ({"prompt": 3, "completion": "a"}, r"field 'prompt' is not text but a number"),
        ({"prompt": "a", "completion": ["a"]}, r"field 'completion' is not text but a list"),
        ({"prompt": "a", "completion": "\ud83d"}, r"field 'completion' has half a character \(\\ud83d\)"),
        ("a story", r"not a JSON object but a text; .*, such as \{\"prompt\": …, \"completion\": …\}"),
    ],
)  # fmt: skip
def test_a_bad_line_is_named(line, message, tmp_path):
    found = source(tmp_path, lines(PAIRS) + "\n" + json.dumps(line) + "\n")
    with pytest.raises(InputError, match=r"task\.jsonl: line 6: " + message):
        list(found.examples())


ROWS = [
    {"prompt": "a", "completion": "b", "text": None, "label": None},
    {"text": "c", "label": "d", "instruction": None, "prompt": None},
    {"instruction": "e", "input": "f", "output": "g", "text": None},
    {"instruction": "h", "input": None, "output": "i"},
    {"instruction": "j", "input": "", "output": "k"},
]


@pytest.mark.parametrize("suffix", ["json", "jsonl", "parquet"])
def test_a_field_that_is_null_is_absent(suffix, tmp_path):
    path = tmp_path / f"task.{suffix}"
    if suffix == "parquet":
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        names = {name: None for row in ROWS for name in row}
        parquet.write_table(pyarrow.Table.from_pylist([names | row for row in ROWS]), path)
    else:
        path.write_text(json.dumps(ROWS) if suffix == "json" else "\n".join(map(json.dumps, ROWS)))
    (file,) = find_text_files([str(path)], DataConfig(supervised=True))
    assert file.holds_examples
    assert [each.texts for each in file.examples()] == [
        ("a", "b"), ("c", "\nd"), ("e\nf", "\ng"), ("h", "\ni"), ("j", "\nk")
    ]  # fmt: skip


def test_named_columns_are_read_alone(tmp_path):
    config = DataConfig(supervised=True, text_column="instruction", label_column="output")
    (tmp_path / "task.jsonl").write_text(json.dumps(ROWS[2]))
    (file,) = find_text_files([str(tmp_path / "task.jsonl")], config)
    assert [each.texts for each in file.examples()] == [("e", "\ng")]


@pytest.mark.parametrize("names", [("prompt", "completion"), ("text", "label"), ("instruction", "output")])
@pytest.mark.parametrize("suffix", ["csv", "tsv", "json", "jsonl"])
def test_the_usual_names_make_rows_of_any_format_examples(tmp_path, suffix, names):
    path, row, delimiter = tmp_path / f"task.{suffix}", {"n": "1", names[0]: "a", names[1]: "b"}, "\n"
    separator = {"csv": ",", "tsv": "\t"}.get(suffix)
    path.write_text(
        json.dumps([row] if suffix == "json" else row)
        if separator is None
        else "".join(separator.join(cells) + "\n" for cells in (row, row.values()))
    )
    (file,) = find_text_files([str(path)], DataConfig(supervised=True))
    assert file.holds_examples
    assert file.label_fields is None
    assert [each.texts for each in file.examples()] == [("a", "b" if names[0] == "prompt" else delimiter + "b")]


def test_the_fields_of_text_and_label_are_named(tmp_path):
    path = tmp_path / "task.jsonl"
    path.write_text('{"body": "good", "score": 5}\n{"body": "bad", "score": 1}\n')
    (file,) = find_text_files([str(path)], DataConfig(supervised=True, text_column="body", label_column="score"))
    assert [(each.prompt, each.completion) for each in file.examples()] == [("good", "\n5"), ("bad", "\n1")]
    with pytest.raises(UsageError, match="text and label are two columns"):
        DataConfig(supervised=True, text_column="body", label_column="body")
