import io
import json
import math
import sys

import pytest

from cli.main import run
from lm.data.tokenizer import Tokenizer
from tests.cli.small_runs import TEXT, make_run

FIGURES = ["tokens", "words", "bytes", "nats", "perplexity", "word_perplexity", "bits_per_byte", "standard_error"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {
        "bpe": make_run(folder / "bpe"),
        "char": make_run(folder / "char", kind="char"),
        "learned": make_run(folder / "learned", positions="learned"),
        "encoder": make_run(folder / "encoder", n_encoder_layers=1, positions="sinusoidal"),
    }


@pytest.fixture
def texts(tmp_path):
    """A folder with two texts."""
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.txt").write_text("The fox.\n<|endoftext|>\nThe owl.\n")
    return tmp_path


@pytest.fixture
def report(capsys):
    """Runs `lm perplexity … --json`; returns what it printed."""

    def succeed(*arguments) -> dict:
        code = run(["perplexity", *map(str, arguments), "--json"])
        output = capsys.readouterr()
        assert code == 0, output.err
        return json.loads(output.out)

    return succeed


def test_files_and_their_total_are_reported(report, runs, texts):
    reported = report(runs["bpe"], texts)
    a, b = reported["files"]
    total = reported["total"]
    assert [file["file"] for file in reported["files"]] == [str(texts / "a.txt"), str(texts / "b.txt")]
    for figures in (a, b, total):
        assert set(figures) - {"file"} == {*FIGURES, "unscored", "documents"}
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


def test_a_checkpoint_counts_as_its_run(report, runs, texts):
    from_run, from_checkpoint = report(runs["bpe"], texts), report(runs["bpe"] / "checkpoints/step-0", texts)
    assert from_run["total"] == from_checkpoint["total"]


def test_context_and_stride_change_the_figures_but_the_batch_does_not(report, runs, texts):
    half = report(runs["bpe"], texts)
    disjoint = report(runs["bpe"], texts, "--stride", 32)
    short = report(runs["bpe"], texts, "--context", 8)
    assert (disjoint["stride"], short["context"], short["stride"]) == (32, 8, 4)
    figures = {run["total"]["nats"] for run in (half, disjoint, short)}
    assert len(figures) == 3
    assert len({run["total"]["tokens"] for run in (half, disjoint, short)}) == 1
    for size in (1, 5, 32):
        again = report(runs["bpe"], texts, "--batch-size", size)
        assert again["total"]["nats"] == pytest.approx(half["total"]["nats"], rel=1e-6)


def test_the_first_characters_of_documents_are_unscored_without_a_start_token(report, runs, texts):
    total = report(runs["char"], texts)["total"]
    assert total["unscored"] == total["documents"] == 3
    assert total["tokens"] == len(TEXT) + len("The fox.\nThe owl.\n") - 3


def test_standard_input_is_a_file_too(report, runs, texts, monkeypatch):
    expected = report(runs["bpe"], texts / "a.txt")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    reported = report(runs["bpe"], "-")
    assert reported["files"][0]["file"] == "stdin"
    assert reported["total"] == expected["total"]


def test_the_table_states_unit_context_and_stride(capsys, runs, texts):
    assert run(["perplexity", str(runs["bpe"]), str(texts), "--context", "24", "--stride", "6"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert "\x1b" not in output.out
    assert "per token" in output.out
    assert "context 24, stride 6" in output.out
    header, a, b, total, _ = output.out.splitlines()
    assert header.startswith("file")
    assert a.startswith(str(texts / "a.txt"))
    assert b.startswith(str(texts / "b.txt"))
    assert total.startswith("total")


def test_huge_figures_stay_short(capsys, runs, tmp_path):
    (tmp_path / "word.txt").write_text("Thefoxbythemill" * 5)
    assert run(["perplexity", str(runs["bpe"]), str(tmp_path / "word.txt")]) == 0
    figures = capsys.readouterr().out.splitlines()[1]
    assert "e+" in figures
    assert len(figures) < len(str(tmp_path)) + 120


def test_one_file_has_no_total_row(capsys, runs, texts):
    assert run(["perplexity", str(runs["bpe"]), str(texts / "a.txt")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_an_empty_file_is_zeros_and_no_error(capsys, report, runs, tmp_path):
    (tmp_path / "empty.txt").touch()
    reported = report(runs["bpe"], tmp_path / "empty.txt")
    for figures in (reported["files"][0], reported["total"]):
        assert (figures["tokens"], figures["words"], figures["bytes"], figures["nats"]) == (0, 0, 0, 0)
        assert figures["perplexity"] is figures["word_perplexity"] is figures["bits_per_byte"] is None
    assert run(["perplexity", str(runs["bpe"]), str(tmp_path / "empty.txt")]) == 0
    output = capsys.readouterr()
    assert "nan" not in output.out
    assert output.err == "nothing to score\n"


def test_one_token_without_a_start_token_is_one_unscored(report, runs, tmp_path):
    (tmp_path / "one.txt").write_text("T")
    total = report(runs["char"], tmp_path / "one.txt")["total"]
    assert (total["tokens"], total["unscored"], total["perplexity"]) == (0, 1, None)
    assert report(runs["bpe"], tmp_path / "one.txt")["total"]["tokens"] == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"The \xff owl", "byte offset 4"), (b"\x7fELF\x00\x01", "binary"), (None, "no such file")],
    ids=["invalid UTF-8", "binary", "missing"],
)
def test_bad_files_are_one_line_and_exit_code_1(capsys, runs, tmp_path, content, message):
    path = tmp_path / "bad.txt"
    if content is not None:
        path.write_bytes(content)
    assert run(["perplexity", str(runs["bpe"]), str(path)]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert message in output.err
    assert str(path) in output.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bpe", "--stride", "33"], "stride 33"),
        (["bpe", "--context", "0"], "--context"),
        (["bpe", "--batch-size", "-1"], "--batch-size"),
        (["learned", "--context", "33"], "--context"),
        (["encoder"], "encoder-decoder"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(capsys, runs, texts, arguments, message):
    name, *flags = arguments
    assert run(["perplexity", str(runs[name]), str(texts), *flags]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert message in output.err


def test_a_longer_context_than_the_models_is_allowed_with_rotary_positions(report, runs, texts):
    assert report(runs["bpe"], texts, "--context", 60)["context"] == 60
