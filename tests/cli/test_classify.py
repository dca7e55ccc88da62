"""`lm classify` and `lm evaluate` on classifiers, by a masked model and by decoders."""

import io
import json
import re
import sys
from collections import Counter

import pytest

import lm
from cli.classification_report import warn
from cli.main import run
from lm.config.data import DataConfig
from lm.evaluation.classification import ClassificationScores
from tests.cli.small_runs import make_run

TEXTS = ["the owl", "the fox ran", "Über den Bäumen", "mill", "the owl sang", "a fox"]
LABELS = ["joy", "fear", "joy", "anger", "fear", "joyful"]
COMPLETIONS = ("\nfear", "\njoy", "\njoyful")
KINDS = {
    "masked": {"objective": "masked", "labels": ("fear", "joy", "joyful")},
    "decoder": {"supervised": True, "label_completions": COMPLETIONS},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of each kind, texts line by line, and the same with labels, of which one is none of the runs'."""
    folder = tmp_path_factory.mktemp("labels")
    for name, fields in KINDS.items():
        make_run(folder / name, **fields)
    make_run(folder / "old", supervised=True)
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS, strict=True)]
    (folder / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    (folder / "labelled.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    known = [row for row in rows if row["label"] != "anger"]
    (folder / "known.jsonl").write_text("".join(json.dumps(row) + "\n" for row in known))
    return folder


@pytest.fixture
def succeed(capsys, folder, monkeypatch):
    """Runs a command line where the files are; returns what it wrote to stdout and stderr."""
    monkeypatch.chdir(folder)

    def call(*arguments) -> tuple[str, str]:
        code = run(list(map(str, arguments)))
        output = capsys.readouterr()
        assert code == 0, output.err
        return output.out, output.err

    return call


@pytest.mark.parametrize("kind", KINDS)
def test_each_line_is_a_label_and_its_probability(succeed, folder, kind):
    found = list(lm.load(folder / kind).classify(TEXTS))
    out, err = succeed("classify", kind, "texts.txt")
    assert [line.split("\t") for line in out.splitlines()] == [
        [each.label, f"{each.probabilities[each.label]:.4f}"] for each in found
    ]
    assert "accuracy" not in err


@pytest.mark.parametrize("kind", KINDS)
def test_json_has_the_probabilities_and_top_k_the_first_of_them(succeed, folder, kind):
    found = list(lm.load(folder / kind).classify(TEXTS))
    for top_k in (None, 2, 9):
        flags = [] if top_k is None else ["--top-k", top_k]
        records = [
            json.loads(line) for line in succeed("classify", kind, "texts.txt", "--json", *flags)[0].splitlines()
        ]
        for record, each in zip(records, found, strict=True):
            assert (record["text"], record["label"]) == (each.text, each.label)
            assert list(record["probabilities"].items()) == list(each.probabilities.items())[:top_k]
    lines = succeed("classify", kind, "texts.txt", "--top-k", 2)[0].splitlines()
    assert [line.split("\t")[::2] for line in lines] == [list(each.probabilities)[:2] for each in found]


def test_stdin_and_several_files_are_read(succeed, monkeypatch):
    whole = succeed("classify", "decoder", "texts.txt", "labelled.jsonl")[0]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("".join(f"{text}\n" for text in TEXTS).encode())))
    assert succeed("classify", "decoder")[0] * 2 == whole


def test_plain_text_is_read_by_line_whatever_the_columns_of_the_run(succeed, folder):
    columns = DataConfig(supervised=True, text_column="review", label_column="stars")
    make_run(folder / "columns", data=columns, label_completions=COMPLETIONS)
    assert succeed("classify", "columns", "texts.txt") == succeed("classify", "decoder", "texts.txt")
    (folder / "rows.jsonl").write_text("".join(json.dumps({"review": text, "stars": "joy"}) + "\n" for text in TEXTS))
    flags = "--format", "text", "--json"
    lines = succeed("classify", "columns", "rows.jsonl", *flags)[0].splitlines()
    assert [json.loads(line)["text"] for line in lines] == (folder / "rows.jsonl").read_text().splitlines()
    assert "accuracy" in succeed("classify", "columns", "rows.jsonl")[1]


def test_the_batch_size_makes_no_difference(succeed):
    assert len({succeed("classify", "decoder", "texts.txt", "--batch-size", size)[0] for size in (1, 3, 64)}) == 1


def test_a_file_of_examples_tells_the_labels_of_an_old_run(succeed):
    out, err = succeed("classify", "old", "labelled.jsonl", "--labels", "known.jsonl")
    assert (out, err) == succeed("classify", "decoder", "labelled.jsonl")  # the weights are the same
    assert run(["classify", "old", "texts.txt"]) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_of_texts_with_labels_the_accuracy_is_told(succeed, kind):
    out, err = succeed("classify", kind, "labelled.jsonl")
    correct = sum(line.split("\t")[0] == label for line, label in zip(out.splitlines(), LABELS, strict=True))
    assert err.splitlines()[0] == f"accuracy {correct / 6:.1%}: {correct} of 6 labels"


@pytest.mark.parametrize("kind", KINDS)
def test_the_report_counts_what_classify_says(succeed, folder, kind):
    guesses = [line.split("\t")[0] for line in succeed("classify", kind, "labelled.jsonl")[0].splitlines()]
    out, err = succeed("evaluate", kind, "labelled.jsonl", "--json")
    report, pairs = json.loads(out), Counter(zip(LABELS, guesses, strict=True))
    assert report["examples"] == len(LABELS)
    assert report["correct"] == sum(count for (label, guess), count in pairs.items() if label == guess)
    assert report["accuracy"] == report["correct"] / len(LABELS)
    assert report["majority"]["accuracy"] == 2 / 6
    assert report["unknown"] == {"anger": 1}
    assert "unknown to this model: 'anger'; 1 text" in err
    matrix, labels = report["confusion"]["matrix"], report["confusion"]["labels"]
    for row, label in enumerate(labels):
        assert matrix[row] == [pairs[label, guess] for guess in labels]
    scores = lm.load(folder / kind).evaluate(folder / "labelled.jsonl")
    assert (scores.accuracy, scores.macro_f1) == (report["accuracy"], report["macro_f1"])
    assert [each.label for each in scores.by_label] == [each["label"] for each in report["labels"]]


def test_the_report_is_a_page_of_tables(succeed):
    lines = succeed("evaluate", "decoder", "labelled.jsonl")[0].splitlines()
    assert lines[0].startswith("accuracy ")
    assert "95% interval" in lines[0]
    assert lines[1].startswith("majority baseline 33.3%: always ")
    assert lines[2].startswith("macro F1 ")
    assert lines[4].split() == ["label", "precision", "recall", "F1", "support"]
    (anger,) = (line.split() for line in lines[5:] if line.startswith("anger  ") and "–" in line)
    assert anger == ["anger", "–", "0.000", "0.000", "1"]
    rows = [line.split() for line in lines[5 : lines.index("", 5)]]
    assert all(re.fullmatch(r"–|[01]\.\d{3}", value) for row in rows if len(row) == 5 for value in row[1:4])
    assert any(line.startswith("confusion matrix") for line in lines)


def test_of_many_labels_the_most_frequent_confusions_are_printed(succeed, folder):
    rows = [{"text": f"the owl {n % 3}", "label": str(n % 15)} for n in range(60)]
    (folder / "many.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = succeed("evaluate", "decoder", "many.jsonl")[0].splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("most frequent confusions"))
    assert lines[start + 1].split() == ["label", "predicted", "count"]
    counts = [int(line.split()[-1]) for line in lines[start + 2 :]]
    assert counts == sorted(counts, reverse=True)
    assert 0 < len(counts) <= 20


def test_labels_that_are_never_predicted_are_named(capsys):
    warn(ClassificationScores.from_predictions(["joy", "fear", "rage"], ["joy", "joy", "joy"], known=["joy", "fear"]))
    assert "never predicted: 'fear'" in capsys.readouterr().err


def test_info_names_the_labels_of_a_decoder(succeed):
    assert "3: fear, joy, joyful" in succeed("info", "decoder")[0]


@pytest.mark.parametrize(
    ("name", "message"), [("text", "does not classify texts"), ("old", "name a file of examples that have all of them")]
)
def test_python_says_why_a_run_is_no_classifier(folder, name, message):
    if name == "text":
        make_run(folder / name, objective="masked")
    with pytest.raises(lm.LMError, match=message):
        next(lm.load(folder / name).classify(["text"]))
