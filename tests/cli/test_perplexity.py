"""`lm perplexity`: files as a table, JSON and CSV, token by token, beside another model, and of sentence pairs."""

import csv
import html
import io
import json
import math
import re
import statistics
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from cli.main import run
from cli.perplexity.versus import verdict
from lm.evaluation.perplexity_comparison import PairedDifference
from lm.hardware import inference_dtypes
from lm.tokenizer.tokenizer import Tokenizer
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


def test_an_empty_file_among_others_has_no_figures(report, runs, texts):
    (texts / "empty.txt").touch()
    figures = report(runs["bpe"], texts / "empty.txt", texts / "b.txt")["files"][0]
    assert (figures["tokens"], figures["words"], figures["bytes"], figures["nats"]) == (0, 0, 0, 0)
    assert figures["perplexity"] is figures["word_perplexity"] is figures["bits_per_byte"] is None


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


def test_the_files_before_one_that_cannot_be_read_are_reported_without_a_total(capsys, report, runs, texts):
    (texts / "c.txt").write_text("The owl.\n☃")
    whole = report(runs["char"], texts / "a.txt", texts / "b.txt")
    assert run(["perplexity", str(runs["char"]), str(texts), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found == {name: value for name, value in whole.items() if name not in ("total", "macro")}


def test_a_checkpoint_counts_as_its_run(report, runs, texts):
    from_run, from_checkpoint = report(runs["bpe"], texts), report(runs["bpe"] / "checkpoints/step-0", texts)
    assert from_run["total"] == from_checkpoint["total"]


def test_standard_input_is_a_file_too(report, runs, texts, monkeypatch):
    expected = report(runs["bpe"], texts / "a.txt")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    reported = report(runs["bpe"])
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
    assert report(runs["bpe"], texts / "c.txt", "--set", "data.separator=---")["total"]["documents"] == 2


def test_each_type_is_measured_as_alone(report, succeed, runs, texts):
    reported = report(runs["bpe"], texts, "--compare-dtypes", "--device", "cpu")
    assert tuple(cost["dtype"] for cost in reported["types"]) == inference_dtypes("cpu")
    first = reported["types"][0]
    for cost in reported["types"]:
        alone = report(runs["bpe"], texts, "--dtype", cost["dtype"], "--device", "cpu")["total"]
        assert (cost["nats"], cost["bits_per_byte"]) == pytest.approx((alone["nats"], alone["bits_per_byte"]))
        assert cost["difference_percent"] == pytest.approx(100 * (alone["nats"] / first["nats"] - 1), abs=1e-6)
    table = succeed("perplexity", runs["bpe"], texts, "--compare-dtypes", "--device", "cpu").splitlines()
    assert table[0].split() == ["type", "bits/byte", "difference", "weights", "tokens/s"]


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
    assert right["nats_per_token"] == pytest.approx(right["nats"] / right["tokens"])
    assert right["pairs"] == 20
    assert right["bytes"] == len((pair_files / "test.de").read_bytes()) - 20


def test_pairs_of_one_file_are_those_of_two(report, translation_run, pair_files):
    sides = [(pair_files / name).read_text().splitlines() for name in ("test.en", "test.de")]
    (pair_files / "test.csv").write_text("de,en\n" + "".join(f"{b},{a}\n" for a, b in zip(*sides, strict=True)))
    in_two = report(translation_run, "--source", pair_files / "test.en", "--target", pair_files / "test.de")
    columns = ["--source-column", "en", "--target-column", "de"]
    assert report(translation_run, "--pairs", pair_files / "test.csv", *columns)["total"] == in_two["total"]


def test_files_of_pairs_are_reported_apart_and_in_total(report, translation_run, pair_files):
    twice = ["--source", pair_files / "test.en", "--target", pair_files / "test.de", "--source", pair_files / "copy.en"]
    (pair_files / "copy.en").write_text((pair_files / "test.en").read_text() + "\n")
    (pair_files / "wrong.de").write_text((pair_files / "wrong.de").read_text() + "one\n")
    found = report(translation_run, *twice, "--target", pair_files / "wrong.de")
    assert [file["file"] for file in found["files"]] == [str(pair_files / "test.de"), str(pair_files / "wrong.de")]
    assert [file["blank"] for file in found["files"]] == [0, 1]
    for name in ("nats", "tokens", "pairs", "words", "bytes", "blank"):
        assert found["total"][name] == pytest.approx(sum(file[name] for file in found["files"]))


def test_the_pairs_before_a_file_that_cannot_be_scored_are_reported_without_a_total(
    translation_run, pair_files, succeed, capsys
):
    (pair_files / "short.de").write_text("one\n")
    good = ["--source", str(pair_files / "test.en"), "--target", str(pair_files / "test.de")]
    (pair_files / "copy.en").write_bytes((pair_files / "test.en").read_bytes())
    bad = ["--source", str(pair_files / "copy.en"), "--target", str(pair_files / "short.de")]
    whole = succeed("perplexity", translation_run, *good)
    assert run(["perplexity", str(translation_run), *good, *bad]) == 1
    output = capsys.readouterr()
    assert output.out == whole
    assert "short.de" in output.err


def test_the_examples_before_a_file_that_cannot_be_read_are_reported_without_a_total(tmp_path, succeed, capsys):
    supervised = make_run(tmp_path / "supervised", data_kind="examples")
    good, wrong = tmp_path / "good.jsonl", tmp_path / "wrong.jsonl"
    good.write_text('{"prompt": "The owl saw", "completion": " the fox"}\n{"prompt": "", "completion": "ran"}\n')
    wrong.write_text('{"prompt": "a", "completion": "b"}\n{"prompt": 1, "completion": "b"}\n')
    whole = succeed("perplexity", supervised, good)
    assert run(["perplexity", str(supervised), str(good), str(wrong)]) == 1
    output = capsys.readouterr()
    assert output.out == whole
    assert "wrong.jsonl: line 2: " in output.err


def test_without_colours_digits_stand_beneath_the_text(succeed, runs, texts, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    legend, *lines = succeed("perplexity", runs["bpe"], texts / "a.txt", "--show").splitlines()
    assert "bits per token" in legend
    rows, marks = lines[:-3:2], lines[1:-3:2]
    assert "".join(rows).replace("↵", "\n") == TEXT
    assert all(len(row) <= 40 for row in rows if "狐" not in row)
    tokens = [
        json.loads(line) for line in succeed("perplexity", runs["bpe"], texts / "a.txt", "--per-token").splitlines()
    ]
    first = tokens[0]["nats"] / math.log(2)
    assert marks[0][0] == (str(round(first)) if first < 9.5 else "+")
    assert all(set(row) <= set("0123456789+· ") for row in marks)


def test_digits_stand_beneath_wide_characters(succeed, runs, wide):
    lines = succeed("perplexity", runs["bpe"], wide, "--show").splitlines()
    text, marks = lines[1], lines[2]
    assert text.startswith("한국어 👩‍👩‍👧 e\u0301 <b>&amp;    ␛[31m␇end")
    column = 0
    for character in ["한", "국", "어", " ", "👩‍👩‍👧", " ", "e\u0301"]:
        assert marks[column] != " "
        assert marks[column + 1 : column + cell_len(character)].strip() == ""
        column += cell_len(character)


def test_per_token_gives_each_token_its_place_and_surprisal(succeed, report, runs, texts):
    total = report(runs["char"], texts)["total"]
    tokens = [json.loads(line) for line in succeed("perplexity", runs["char"], texts, "--per-token").splitlines()]
    assert set(tokens[0]) == {"file", "document", "index", "offset", "bytes", "token", "text", "nats"}
    assert sum(token["nats"] is not None for token in tokens) == total["tokens"]
    assert sum(token["nats"] is None for token in tokens) == total["unscored"]
    assert sum(token["nats"] or 0 for token in tokens) == pytest.approx(total["nats"])
    for token in tokens:
        if token["file"].endswith("a.txt"):
            data = TEXT.encode()[token["offset"] : token["offset"] + token["bytes"]]
            assert token["text"] == data.decode(errors="replace")


def test_on_a_terminal_the_text_is_coloured_and_no_character_is_split(succeed, runs, wide, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = succeed("perplexity", runs["bpe"], wide, "--show")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    assert "\x1b" not in plain
    assert "한국어 👩‍👩‍👧 e\u0301 <b>&amp;    ␛[31m␇end↵\n🇰🇷🇩🇪.↵\n" in plain
    painted = re.findall(r"\x1b\[[0-9;]+m(.*?)\x1b\[0m", out)
    assert {"한", "👩‍👩‍👧", "e\u0301", "🇰🇷"} <= set(painted)
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
    assert [path.name for path in out.parent.iterdir()] == ["page.html"]


def test_versus_itself_is_no_difference(succeed, report, runs, texts):
    total = report(runs["bpe"], texts, "--versus", runs["bpe"])["total"]
    assert (total["difference"], total["standard_error"], total["z"]) == (0, 0, None)
    assert succeed("perplexity", runs["bpe"], texts, "--versus", runs["bpe"]).endswith("the two do not differ\n")


def test_versus_another_tokenizer_compares_the_bytes_that_both_score(succeed, report, runs, texts):
    reported = report(runs["bpe"], texts, "--versus", runs["char"])
    total = reported["total"]
    assert [file["file"] for file in reported["files"]] == [str(texts / "a.txt"), str(texts / "b.txt")]
    assert total["difference"] == pytest.approx(total["first_bits_per_byte"] - total["second_bits_per_byte"])
    assert total["z"] == pytest.approx(total["difference"] / total["standard_error"])
    assert total["bytes"] == sum(file["bytes"] for file in reported["files"])
    header, *_, sentence = succeed("perplexity", runs["bpe"], texts, "--versus", runs["char"]).splitlines()
    assert header.split() == ["file", "bytes", "bits/byte", "versus", "difference", "std", "error", "z"]
    assert f"{abs(total['difference']):.4f} ± {total['standard_error']:.4f} bits per byte" in sentence


def difference(*blocks: tuple[float, float]) -> PairedDifference:
    """Two models on blocks of a hundred bytes, with the bits of each."""
    total = PairedDifference()
    for first, second in blocks:
        total.add(segments=2, size=100, first=first, second=second)
    return total


@pytest.mark.parametrize(
    ("blocks", "sentence"),
    [
        ((), "there is no text that both score"),
        (((150, 150), (160, 160)), "the two do not differ"),
        (((160, 150),), "b is ahead of a by 0.1000 bits per byte; the text is too short to say how surely"),
        # the mean of 50 and 150 is 100, and its standard error 50, for 100 bytes each
        (((150, 200), (150, 300)), "a is better than b by 1.0000 ± 0.5000 bits per byte (z = 2.0)"),
        (((150, 200), (150, 301)),
         "no clear difference: a is ahead of b by 1.0050 ± 0.5050 bits per byte (z = 2.0)"),
    ],
)  # fmt: skip
def test_a_verdict_is_clear_from_two_standard_errors(blocks, sentence):
    assert verdict(difference(*blocks), (Path("a"), Path("b"))) == sentence


@pytest.fixture
def lossy(tmp_path):
    """A run with an uncased tokenizer that does not know all characters."""
    return make_run(tmp_path / "lossy", tokenizer=Tokenizer(bert_like()))


def test_no_verdict_on_models_of_which_one_has_a_tokenizer_that_loses_text(succeed, report, runs, lossy, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The cat sat.\n🦉 The OWL.\n" * 30)
    reported = report(runs["bpe"], text, "--versus", lossy)
    assert reported["comparable"] is False
    assert reported["total"]["z"] is None
    of_bpe, of_lossy = reported["first"], reported["second"]
    assert (of_bpe["unknown_tokens"], of_bpe["lost_bytes"]) == (0, 0)
    assert of_lossy["unknown_tokens"] >= 30
    assert of_lossy["lost_bytes"] >= 30 * (1 + 4 + 1 + 3)  # at least T, an owl, T and OWL
    assert "\nno verdict: " in succeed("perplexity", runs["bpe"], text, "--versus", lossy)
