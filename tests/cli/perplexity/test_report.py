"""The perplexity of files: as a table, JSON and CSV it is the same, whatever the files are called."""

import csv
import io
import json
import math
import statistics
import sys

import pytest

from cli.main import run
from cli.perplexity.report import describe_conditions, print_scores
from cli.perplexity.report_options import ReportFormat
from lm.evaluation.perplexity import FileScore, PerplexityResult
from lm.hardware import inference_dtypes
from lm.tokenizer.tokenizer import Tokenizer
from tests.cli.small_runs import TEXT

TABLE = ReportFormat(
    as_json=False, as_csv=False, per_token=False, show=False, html=None, versus=None, compare_dtypes=False
)
FIGURES = ["tokens", "words", "bytes", "nats", "perplexity", "word_perplexity", "bits_per_byte", "standard_error"]


def test_files_and_their_total_are_reported(report, runs, texts):
    reported = report(runs["bpe"], texts)
    a, b = reported["files"]
    total = reported["total"]
    assert [file["file"] for file in reported["files"]] == [str(texts / "a.txt"), str(texts / "b.txt")]
    for figures in (a, b, total):
        assert set(figures) - {"file"} == {*FIGURES, "unscored", "documents", "unknown_tokens", "lost_bytes"}
        assert figures["perplexity"] == pytest.approx(math.exp(figures["nats"] / figures["tokens"]))
        assert figures["word_perplexity"] == pytest.approx(math.exp(figures["nats"] / figures["words"]))
        assert figures["bits_per_byte"] == pytest.approx(figures["nats"] / math.log(2) / figures["bytes"])
    for name in ("tokens", "words", "bytes", "nats", "unscored", "documents"):
        assert total[name] == pytest.approx(a[name] + b[name])
    tokenizer = Tokenizer.load(runs["bpe"] / "checkpoints/step-0/tokenizer.json")
    assert (a["tokens"], a["words"], a["bytes"]) == (
        len(tokenizer.encode(TEXT)), len(TEXT.split()), len(TEXT.encode()),
    )  # fmt: skip
    assert (b["documents"], b["words"], b["unscored"]) == (2, 4, 0)
    assert (reported["unit"], reported["context"], reported["stride"]) == ("token", 32, 16)
    assert reported["tokenizer"] == {"vocab_size": tokenizer.vocab_size, "sha256": tokenizer.sha256}
    assert reported["model"]["context_length"] == 32


def test_the_table_states_unit_context_and_stride(capsys, runs, texts):
    assert run(["perplexity", str(runs["bpe"]), str(texts), "--context", "24", "--stride", "6"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert "\x1b" not in output.out
    assert "per token" in output.out
    assert "context 24, stride 6" in output.out
    header, a, b, total, mean, _ = output.out.splitlines()
    assert header.startswith("file")
    assert a.startswith(str(texts / "a.txt"))
    assert b.startswith(str(texts / "b.txt"))
    assert total.startswith("total")
    assert mean.startswith("mean")


def test_the_rows_of_files_their_total_and_their_mean(capsys):
    """Of 2.5 nats/token with a variance of 0.25, and of 1; words of 20 bytes are the longest with a perplexity."""
    first = PerplexityResult(tokens=2000, documents=1, words=500, bytes=2500, nats=5000.0, squares=12_500.0 + 499.75)
    second = PerplexityResult(tokens=100, unscored=3, documents=3, words=10, bytes=200, nats=100.0, squares=100.0)
    longer = PerplexityResult(tokens=100, words=10, bytes=201, nats=100.0, squares=100.0)
    conditions = {"unit": "token", "context": 8, "stride": 4, "first_token_scored": True,
                  "tokenizer": {"vocab_size": 1000}}  # fmt: skip
    rows = {}
    for name, last in (("words", second), ("long words", longer)):
        scores = [FileScore("a.txt", first), FileScore("b.txt", last)]
        print_scores(scores, conditions, TABLE, is_complete=True)
        _, *lines, _ = capsys.readouterr().out.splitlines()
        rows[name] = [line.split() for line in lines]
    assert rows["words"] == [
        ["a.txt", "2,000", "500", "2,500", "12.182", "22,026.466", "2.8854", "0.0112"],
        ["b.txt", "100", "10", "200", "2.718", "22,026.466", "0.7213", "0.0000"],
        ["total", "2,100", "510", "2,700", "11.343", "22,026.466", "2.7251", "0.0127"],
        ["mean", "–", "–", "–", "7.450", "22,026.466", "1.8034", "0.7500"],
    ]
    assert [row[5] for row in rows["long words"]] == ["22,026.466", "–", "22,026.466", "–"]


@pytest.mark.parametrize(
    ("conditions", "sentence"),
    [
        ({"unit": "token", "stride": 4, "first_token_scored": True},
         "perplexity per token (1,000 in the vocabulary), context 8, stride 4; 2 documents, each conditioned on a "
         "document-start token (3 tokens unscored)"),
        ({"unit": "token", "stride": 4, "first_token_scored": False},
         "perplexity per token (1,000 in the vocabulary), context 8, stride 4; 2 documents, each with an unscored "
         "first token (3 tokens unscored)"),
        ({"unit": "masked token", "stride": 4, "score_every": 1}, "from one side compares with; context 8, stride 4"),
        ({"unit": "masked token", "stride": 4, "score_every": 2},
         "compares with; only one in 2 is scored (3 are not); context 8, stride 4; 2 documents"),
        ({"unit": "completion token", "shortened": 0}, "as the run is supervised; context 8; 2 examples"),
        ({"unit": "completion token", "shortened": 1},
         "context 8; 2 examples, of which 1 lost the beginning of the prompt"),
        ({"unit": "assistant token", "shortened": 0}, "after all messages before; context 8; 2 conversations"),
        ({"unit": "assistant token", "shortened": 1}, "context 8; 2 conversations, of which 1 lost their last turns"),
    ],
)  # fmt: skip
def test_a_sentence_says_how_text_was_scored(conditions, sentence):
    total = PerplexityResult(tokens=9, unscored=3, documents=2)
    described = describe_conditions({"context": 8, "tokenizer": {"vocab_size": 1000}, **conditions}, total)
    assert sentence in described
    if sentence.startswith("perplexity") or conditions.get("score_every") != 1:
        assert described.endswith(sentence)


def test_huge_figures_stay_short(capsys, runs, tmp_path):
    (tmp_path / "word.txt").write_text("Thefox bythemill" * 5)
    assert run(["perplexity", str(runs["bpe"]), str(tmp_path / "word.txt")]) == 0
    figures = capsys.readouterr().out.splitlines()[1]
    assert "e+" in figures
    assert len(figures) < len(str(tmp_path)) + 120


def test_text_without_spaces_has_no_perplexity_of_words(capsys, runs, tmp_path, texts):
    (tmp_path / "word.txt").write_text("Thefoxbythemill" * 5)
    assert run(["perplexity", str(runs["bpe"]), str(tmp_path / "word.txt"), str(texts / "a.txt")]) == 0
    word, of_text, _, mean = (line.split() for line in capsys.readouterr().out.splitlines()[1:5])
    place = -3
    assert (word[place], mean[place]) == ("–", "–")
    assert of_text[place] != "–"


def test_one_file_has_no_total_row(capsys, runs, texts):
    assert run(["perplexity", str(runs["bpe"]), str(texts / "a.txt")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_an_empty_file_among_others_has_no_figures(report, runs, texts):
    (texts / "empty.txt").touch()
    figures = report(runs["bpe"], texts / "empty.txt", texts / "b.txt")["files"][0]
    assert (figures["tokens"], figures["words"], figures["bytes"], figures["nats"]) == (0, 0, 0, 0)
    assert figures["perplexity"] is figures["word_perplexity"] is figures["bits_per_byte"] is None


def test_one_token_without_a_start_token_is_nothing_to_score(capsys, report, runs, tmp_path):
    (tmp_path / "one.txt").write_text("T")
    assert run(["perplexity", str(runs["char"]), str(tmp_path / "one.txt")]) == 1
    assert "only first tokens" in capsys.readouterr().err
    assert report(runs["bpe"], tmp_path / "one.txt")["total"]["tokens"] == 1


def test_the_macro_average_is_beside_the_micro_average(report, runs, texts):
    reported = report(runs["bpe"], texts)
    macro = reported["macro"]
    assert macro["files"] == 2
    for name in ("perplexity", "word_perplexity", "bits_per_byte"):
        assert macro[name] == pytest.approx(statistics.mean(file[name] for file in reported["files"]))
    means = [file["nats"] / file["tokens"] for file in reported["files"]]
    assert macro["standard_error"] == pytest.approx(statistics.stdev(means) / math.sqrt(2))


def test_csv_has_the_figures_of_json_unrounded(succeed, report, runs, texts):
    (texts / "empty.txt").touch()
    reported = report(runs["bpe"], texts)
    rows = list(csv.DictReader(io.StringIO(succeed("perplexity", runs["bpe"], texts, "--csv"))))
    assert [row["file"] for row in rows] == [*(file["file"] for file in reported["files"]), "total"]
    for row, figures in zip(rows, [*reported["files"], reported["total"]], strict=True):
        for name in FIGURES:
            assert row[name] == ("" if figures[name] is None else str(figures[name]))


@pytest.mark.parametrize("form", ["table", "--json", "--csv"])
def test_the_files_before_one_that_cannot_be_read_are_reported_without_a_total(capsys, succeed, runs, texts, form):
    (texts / "c.txt").write_text("The owl.\n☃")
    forms = [form] if form != "table" else []
    whole = succeed("perplexity", runs["char"], texts / "a.txt", texts / "b.txt", *forms)
    assert run(["perplexity", str(runs["char"]), str(texts), *forms]) == 1
    output = capsys.readouterr()
    assert "c.txt: character '☃'" in output.err.splitlines()[-1]
    if form == "--json":
        report, whole = json.loads(output.out), json.loads(whole)
        assert report == {name: value for name, value in whole.items() if name not in ("total", "macro")}
    else:
        found, expected = output.out.splitlines(), whole.splitlines()
        assert [line.split() for line in found[:3]] == [line.split() for line in expected[:3]]
        assert not any(line.startswith(("total", "mean")) for line in found)


def test_a_checkpoint_counts_as_its_run(report, runs, texts):
    from_run, from_checkpoint = report(runs["bpe"], texts), report(runs["bpe"] / "checkpoints/step-0", texts)
    assert from_run["total"] == from_checkpoint["total"]


@pytest.mark.parametrize("arguments", [["-"], []])
def test_standard_input_is_a_file_too(report, runs, texts, monkeypatch, arguments):
    expected = report(runs["bpe"], texts / "a.txt")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    reported = report(runs["bpe"], *arguments)
    assert reported["files"][0]["file"] == "stdin"
    assert reported["total"] == expected["total"]


def test_the_first_characters_of_documents_are_unscored_without_a_start_token(report, runs, texts):
    total = report(runs["char"], texts)["total"]
    assert total["unscored"] == total["documents"] == 3
    assert total["tokens"] == len(TEXT) + len("The fox.\nThe owl.\n") - 3


def test_a_longer_context_than_the_models_is_allowed_with_rotary_positions(report, runs, texts):
    assert report(runs["bpe"], texts, "--context", 60)["context"] == 60


def test_documents_are_split_as_asked(report, runs, texts):
    (texts / "c.txt").write_text("The fox.\n---\nThe owl.\n")
    assert report(runs["bpe"], texts / "c.txt")["total"]["documents"] == 1
    assert report(runs["bpe"], texts / "c.txt", "--separator", "---")["total"]["documents"] == 2


def test_each_type_is_measured_as_alone(report, succeed, runs, texts):
    reported = report(runs["bpe"], texts, "--compare-dtypes", "--device", "cpu")
    assert tuple(cost["dtype"] for cost in reported["types"]) == inference_dtypes("cpu")
    first = reported["types"][0]
    for cost in reported["types"]:
        alone = report(runs["bpe"], texts, "--dtype", cost["dtype"], "--device", "cpu")["total"]
        assert (cost["nats"], cost["bits_per_byte"]) == pytest.approx((alone["nats"], alone["bits_per_byte"]))
        assert cost["difference_percent"] == pytest.approx(100 * (alone["nats"] / first["nats"] - 1), abs=1e-6)
    assert (reported["context"], reported["model"]["run"]) == (32, str(runs["bpe"]))
    table = succeed("perplexity", runs["bpe"], texts, "--compare-dtypes", "--device", "cpu").splitlines()
    assert table[0].split() == ["type", "bits/byte", "difference", "weights", "tokens/s"]
    assert [line.split()[0] for line in table[1 : 1 + len(reported["types"])]] == list(inference_dtypes("cpu"))
