"""An example has one of two forms; a line with neither is named."""

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
        ({"question": "a", "answer": "b"}, r"needs 'prompt' and 'completion', or .*; it has question, answer"),
        ({}, r"needs 'prompt' and 'completion', or 'text' and 'label'; it has nothing"),
        ({"prompt": "", "completion": "", "text": "", "label": ""}, r"has prompt, completion, .*not both"),
        ({"prompt": "a", "completion": ""}, r"field 'completion' is empty"),
        ({"text": "a", "label": ""}, r"field 'label' is empty"),
        ({"text": "a", "label": None}, r"field 'label' is not text but null"),
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


@pytest.mark.parametrize("names", [("prompt", "completion"), ("text", "label")])
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
