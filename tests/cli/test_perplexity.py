"""`lm perplexity`: files as a table, JSON and CSV, token by token, beside another model, and of sentence pairs."""

import csv
import html
import io
import json
import math
import re

import pytest

from cli.main import run
from lm.tokenizer import Tokenizer
from tests.cli.small_runs import TEXT, make_run
from tests.cli.toy_translation import pairs
from tests.lm.tokenizers_elsewhere import bert_like

WIDE = "한국어 👩‍👩‍👧 e\u0301 <b>&amp;\t\x1b[31m\x07end\n🇰🇷🇩🇪.\n"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs that were never trained, by the kind of their tokenizer."""
    folder = tmp_path_factory.mktemp("runs")
    return {kind: make_run(folder / kind, kind=kind) for kind in ("bpe", "char")}


@pytest.fixture
def texts(tmp_path):
    """A folder with two texts."""
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.txt").write_text("The fox.\n<|endoftext|>\nThe owl.\n")
    return tmp_path


@pytest.fixture
def wide(tmp_path):
    """A text with characters of every width, control characters and HTML."""
    (tmp_path / "wide.txt").write_text(WIDE)
    return tmp_path / "wide.txt"


FIGURES = ["tokens", "words", "bytes", "nats", "perplexity", "word_perplexity", "bits_per_byte"]


def test_files_and_their_total_are_reported(report, runs, texts):
    reported = report(runs["bpe"], texts, "--context", "24", "--stride", "6")
    a, b = reported["files"]
    assert [file["file"] for file in reported["files"]] == [str(texts / "a.txt"), str(texts / "b.txt")]
    for name in ("tokens", "words", "bytes", "nats", "unscored", "documents"):
        assert reported["total"][name] == pytest.approx(a[name] + b[name])
    tokenizer = Tokenizer.load(runs["bpe"] / "checkpoints/step-0/tokenizer.json")
    assert (a["tokens"], a["words"], a["bytes"]) == (
        len(tokenizer.encode(TEXT)), len(TEXT.split()), len(TEXT.encode()),
    )  # fmt: skip
    assert (b["documents"], b["words"], b["unscored"]) == (2, 4, 0)
    conditions = [reported[name] for name in ("unit", "dtype", "context", "stride")]
    assert conditions == ["token", "float32", 24, 6]


def test_the_table_states_unit_context_and_stride_in_headings_and_below(capsys, runs, texts):
    assert run(["perplexity", str(runs["bpe"]), str(texts), "--context", "24", "--stride", "6"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    header, *rows, described = output.out.splitlines()
    assert re.split("  +", header)[4:] == ["perplexity/token", "perplexity/word", "bits/byte"]
    assert [line.split()[0] for line in rows] == [str(texts / "a.txt"), str(texts / "b.txt"), "total"]
    assert "context 24, stride 6" in described


def test_csv_has_the_figures_of_json_unrounded(succeed, report, runs, texts):
    (texts / "empty.txt").touch()
    reported = report(runs["bpe"], texts)
    rows = list(csv.DictReader(io.StringIO(succeed("perplexity", runs["bpe"], texts, "--csv"))))
    assert [row["file"] for row in rows] == [*(file["file"] for file in reported["files"]), "total"]
    for row, figures in zip(rows, [*reported["files"], reported["total"]], strict=True):
        for name in FIGURES:
            assert row[name] == ("" if figures[name] is None else str(figures[name]))


@pytest.fixture
def pair_files(tmp_path):
    """A source file and its targets, right and wrong."""
    known = pairs(20, seed=777)
    (tmp_path / "test.en").write_text("".join(f"{source}\n" for source, _ in known))
    (tmp_path / "test.de").write_text("".join(f"{target}\n" for _, target in known))
    wrong = [" ".join(reversed(target.split())) for _, target in known]
    (tmp_path / "wrong.de").write_text("".join(f"{target}\n" for target in wrong))
    return tmp_path


def test_right_translations_are_expected_and_wrong_ones_are_not(report, translation_run, pair_files):
    right = report(translation_run, "--source", pair_files / "test.en", "--target", pair_files / "test.de")["total"]
    wrong = report(translation_run, "--source", pair_files / "test.en", "--target", pair_files / "wrong.de")["total"]
    assert right["nats_per_token"] < 0.2
    assert wrong["nats_per_token"] > 2
    assert right["documents"] == 20
    assert right["bytes"] == len((pair_files / "test.de").read_bytes()) - 20


@pytest.mark.parametrize(("flag", "unit"), [("--per-token", "nats"), ("--per-word", "bits")])
def test_each_token_or_word_has_its_place_and_surprisal(succeed, report, runs, texts, flag, unit):
    total = report(runs["bpe"], texts)["total"]
    rows = [json.loads(line) for line in succeed("perplexity", runs["bpe"], texts, flag).splitlines()]
    assert sum(row.get("tokens", 1) for row in rows) == total["tokens"]
    assert sum(row[unit] for row in rows) * (math.log(2) if unit == "bits" else 1) == pytest.approx(total["nats"])
    assert flag == "--per-token" or len(rows) == total["words"]
    for row in rows:
        if row["file"].endswith("a.txt"):
            data = TEXT.encode()[row["offset"] : row["offset"] + row["bytes"]]
            assert row["text"] == data.decode(errors="replace")
    table = list(csv.DictReader(io.StringIO(succeed("perplexity", runs["bpe"], texts, flag, "--csv"))))
    assert table == [{name: str(value) for name, value in row.items()} for row in rows]


def test_the_text_is_coloured_and_no_character_is_split(succeed, runs, wide):
    out = succeed("perplexity", runs["bpe"], wide, "--show")
    plain = re.sub(r"\x1b\[[0-9;]*[mK]", "", out)
    assert "\x1b" not in plain
    assert "한국어 👩‍👩‍👧 e\u0301 <b>&amp;    ␛[31m␇end↵\n🇰🇷🇩🇪.↵\n" in plain
    painted = re.findall(r"\x1b\[[0-9;]+m(.*?)\x1b\[0m", out)
    assert {"한", "👩‍👩‍👧", "e\u0301", "🇰🇷🇩🇪"} <= set(painted)
    assert all(name in painted[:8] for name in [" <1 ", " 4–6 ", " ≥14 "])


def test_a_page_that_fails_leaves_the_old_one(capsys, runs, texts, tmp_path):
    out = tmp_path / "page.html"
    out.write_text("old")
    (texts / "c.txt").write_bytes(b"The \xff owl")
    assert run(["perplexity", str(runs["bpe"]), str(texts), "--html", str(out)]) == 1
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt", "c.txt", "page.html"]


def test_the_page_has_the_text_escaped_and_needs_nothing_else(capsys, report, runs, wide, tmp_path):
    out = tmp_path / "new" / "page.html"
    total = report(runs["bpe"], wide, "--html", out)["total"]
    source = out.read_text()
    tokens = re.findall(r'<i class="l\d" data-t="([^"]*)">([^<]*)(?:<u>.*?</u>)?(\n?)</i>', source)
    shown = html.unescape("".join(text + end for _, text, end in tokens))
    assert shown == WIDE.replace("\t", "    ").replace("\x1b", "␛").replace("\x07", "␇")
    assert not re.search(r"https?:|<script|<link|src=", source)
    assert "prefers-color-scheme: dark" in source
    bits = sum(float(re.search(r"· ([0-9.]+) bits", title)[1]) for title, *_ in tokens)
    assert bits == pytest.approx(total["nats"] / math.log(2), abs=0.01 * len(tokens))


def test_versus_itself_is_no_difference(report, runs, texts):
    total = report(runs["bpe"], texts, "--versus", runs["bpe"])["total"]
    assert (total["difference"], total["standard_error"], total["z"]) == (0, 0, None)


def test_versus_another_tokenizer_compares_the_bytes_that_both_score(succeed, report, runs, texts):
    reported = report(runs["bpe"], texts, "--versus", runs["char"])
    total = reported["total"]
    assert [file["file"] for file in reported["files"]] == [str(texts / "a.txt"), str(texts / "b.txt")]
    assert total["difference"] == pytest.approx(total["first_bits_per_byte"] - total["second_bits_per_byte"])
    assert total["z"] == pytest.approx(total["difference"] / total["standard_error"])
    assert total["bytes"] == sum(file["bytes"] for file in reported["files"])
    *_, row, _ = succeed("perplexity", runs["bpe"], texts, "--versus", runs["char"]).splitlines()
    assert row.split()[-3:] == [f"{total[name]:.4f}" for name in ("difference", "standard_error", "z")]
    rows = csv.DictReader(succeed("perplexity", runs["bpe"], texts, "--versus", runs["char"], "--csv").splitlines())
    assert [float(each["difference"]) for each in rows] == [each["difference"] for each in (*reported["files"], total)]


def test_models_of_which_one_has_a_tokenizer_that_loses_text_are_not_comparable(report, runs, tmp_path):
    lossy = make_run(tmp_path / "lossy", tokenizer=Tokenizer(bert_like()))
    text = tmp_path / "text.txt"
    text.write_text("The cat sat.\n🦉 The OWL.\n" * 30)
    reported = report(runs["bpe"], text, "--versus", lossy)
    assert (reported["comparable"], reported["total"]["z"]) == (False, None)
    total = report(lossy, text)["total"]
    assert total["unknown_tokens"] >= 30
    assert total["lost_bytes"] >= 30 * (1 + 4 + 1 + 3)  # at least T, an owl, T and OWL
