import csv
import io
import json
import math
import re
import statistics
import sys
from html.parser import HTMLParser

import pytest

from cli.main import run
from lm.tokenizer.tokenizer import Tokenizer
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


@pytest.mark.parametrize("arguments", [["-"], []])
def test_standard_input_is_a_file_too(report, runs, texts, monkeypatch, arguments):
    expected = report(runs["bpe"], texts / "a.txt")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    reported = report(runs["bpe"], *arguments)
    assert reported["files"][0]["file"] == "stdin"
    assert reported["total"] == expected["total"]


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


def test_huge_figures_stay_short(capsys, runs, tmp_path):
    (tmp_path / "word.txt").write_text("Thefoxbythemill" * 5)
    assert run(["perplexity", str(runs["bpe"]), str(tmp_path / "word.txt")]) == 0
    figures = capsys.readouterr().out.splitlines()[1]
    assert "e+" in figures
    assert len(figures) < len(str(tmp_path)) + 120


def test_one_file_has_no_total_row(capsys, runs, texts):
    assert run(["perplexity", str(runs["bpe"]), str(texts / "a.txt")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_an_empty_file_among_others_has_no_figures(report, runs, texts):
    (texts / "empty.txt").touch()
    figures = report(runs["bpe"], texts / "empty.txt", texts / "b.txt")["files"][0]
    assert (figures["tokens"], figures["words"], figures["bytes"], figures["nats"]) == (0, 0, 0, 0)
    assert figures["perplexity"] is figures["word_perplexity"] is figures["bits_per_byte"] is None


@pytest.mark.parametrize("flags", [[], ["--json"], ["--csv"], ["--per-token"]])
def test_nothing_to_score_is_an_error(capsys, runs, tmp_path, flags):
    (tmp_path / "empty.txt").touch()
    assert run(["perplexity", str(runs["bpe"]), str(tmp_path / "empty.txt"), *flags]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == f"lm: {tmp_path / 'empty.txt'}: nothing to score: there is no text\n"


def test_one_token_without_a_start_token_is_nothing_to_score(capsys, report, runs, tmp_path):
    (tmp_path / "one.txt").write_text("T")
    assert run(["perplexity", str(runs["char"]), str(tmp_path / "one.txt")]) == 1
    assert "only first tokens" in capsys.readouterr().err
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


@pytest.fixture
def succeed(capsys):
    """Runs `lm perplexity …`; returns what it printed on stdout."""

    def execute(*arguments) -> str:
        code = run(["perplexity", *map(str, arguments)])
        output = capsys.readouterr()
        assert code == 0, output.err
        return output.out

    return execute


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
    rows = list(csv.DictReader(io.StringIO(succeed(runs["bpe"], texts, "--csv"))))
    assert [row["file"] for row in rows] == [*(file["file"] for file in reported["files"]), "total"]
    for row, figures in zip(rows, [*reported["files"], reported["total"]], strict=True):
        for name in FIGURES:
            assert row[name] == ("" if figures[name] is None else str(figures[name]))


@pytest.mark.parametrize("kind", ["bpe", "char"])
def test_per_token_gives_each_token_its_place_and_surprisal(succeed, report, runs, texts, kind):
    total = report(runs[kind], texts)["total"]
    tokens = [json.loads(line) for line in succeed(runs[kind], texts, "--per-token").splitlines()]
    assert set(tokens[0]) == {"file", "document", "index", "offset", "bytes", "token", "text", "nats"}
    assert sum(token["nats"] is not None for token in tokens) == total["tokens"]
    assert sum(token["nats"] is None for token in tokens) == total["unscored"]
    assert sum(token["nats"] or 0 for token in tokens) == pytest.approx(total["nats"])
    for token in tokens:
        if token["file"].endswith("a.txt"):
            data = TEXT.encode()[token["offset"] : token["offset"] + token["bytes"]]
            assert token["text"] == data.decode(errors="replace")


WIDE = "한국어 👩‍👩‍👧 e\u0301 <b>&amp;\t\x1b[31m\x07end\n🇰🇷🇩🇪.\n"


@pytest.fixture
def wide(tmp_path):
    (tmp_path / "wide.txt").write_text(WIDE)
    return tmp_path / "wide.txt"


def test_without_colours_digits_stand_beneath_the_text(succeed, runs, texts, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    legend, *lines = succeed(runs["bpe"], texts / "a.txt", "--show").splitlines()
    assert "bits per token" in legend
    rows, marks = lines[:-3:2], lines[1:-3:2]
    assert "".join(rows).replace("↵", "\n") == TEXT
    assert all(len(row) <= 40 for row in rows if "狐" not in row)
    tokens = [json.loads(line) for line in succeed(runs["bpe"], texts / "a.txt", "--per-token").splitlines()]
    first = tokens[0]["nats"] / math.log(2)
    assert marks[0][0] == (str(round(first)) if first < 9.5 else "+")
    assert all(set(row) <= set("0123456789+· ") for row in marks)


def test_digits_stand_beneath_wide_characters(succeed, runs, wide):
    from rich.cells import cell_len

    lines = succeed(runs["bpe"], wide, "--show").splitlines()
    text, marks = lines[1], lines[2]
    assert text.startswith("한국어 👩‍👩‍👧 e\u0301 <b>&amp;    ␛[31m␇end")
    column = 0
    for character in ["한", "국", "어", " ", "👩‍👩‍👧", " ", "e\u0301"]:
        assert marks[column] != " "
        assert marks[column + 1 : column + cell_len(character)].strip() == ""
        column += cell_len(character)


def test_on_a_terminal_the_text_is_coloured_and_no_character_is_split(succeed, runs, wide, monkeypatch):
    monkeypatch.setattr("cli.console.colours.in_colour", lambda: True)
    out = succeed(runs["bpe"], wide, "--show")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    assert "\x1b" not in plain
    assert "한국어 👩‍👩‍👧 e\u0301 <b>&amp;    ␛[31m␇end↵\n🇰🇷🇩🇪.↵\n" in plain
    painted = re.findall(r"\x1b\[[0-9;]+m(.*?)\x1b\[0m", out)
    assert {"한", "👩‍👩‍👧", "e\u0301", "🇰🇷"} <= set(painted)
    assert all(name in painted[:8] for name in [" <1 ", " 4–6 ", " ≥14 "])


def test_no_color_and_dumb_terminals_are_respected(monkeypatch):
    from cli.console.colours import in_colour

    monkeypatch.setattr("sys.stdout", type("Terminal", (), {"isatty": lambda self: True})())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not in_colour()
    monkeypatch.delenv("NO_COLOR")
    assert in_colour()
    monkeypatch.setenv("TERM", "dumb")
    assert not in_colour()
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert in_colour()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not in_colour()


def test_levels_begin_at_their_bits():
    from cli.perplexity.surprisal import LEVELS, level, ranges

    assert len(ranges()) == len(LEVELS)
    bits = [0, 0.99, 1, 3.99, 4, 13.9, 14, 300]
    assert [level(value * math.log(2) + 1e-9) for value in bits] == [0, 0, 1, 2, 3, 6, 7, 7]
    assert level(math.nan) == 0


class Page(HTMLParser):
    """The text of a page, what its spans say of themselves, and its tags."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.text, self.titles, self.open, self.tags = "", [], [], []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)
        if tag == "i" and "data-t" in dict(attrs):
            self.titles.append(dict(attrs)["data-t"])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "i" in self.open and "u" not in self.open and self.titles:
            self.text += data


def test_the_page_has_the_text_escaped_and_needs_nothing_else(capsys, report, runs, wide, tmp_path):
    out = tmp_path / "new" / "page.html"
    total = report(runs["bpe"], wide, "--html", out)["total"]
    source = out.read_text()
    page = Page(source)
    assert page.open == []
    assert page.text == WIDE.replace("\t", "    ").replace("\x1b", "␛").replace("\x07", "␇")
    assert "<b>" not in source
    assert not re.search(r"https?:|<script|<link|src=", source)
    assert "prefers-color-scheme: dark" in source
    bits = sum(float(re.search(r"· ([0-9.]+) bits", title)[1]) for title in page.titles)
    assert bits == pytest.approx(total["nats"] / math.log(2), abs=0.01 * len(page.titles))
    assert [path.name for path in out.parent.iterdir()] == ["page.html"]


def test_a_page_that_fails_leaves_the_old_one(capsys, runs, texts, tmp_path):
    out = tmp_path / "page.html"
    out.write_text("old")
    (texts / "c.txt").write_bytes(b"The \xff owl")
    assert run(["perplexity", str(runs["bpe"]), str(texts), "--html", str(out)]) == 1
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt", "c.txt", "page.html"]


def test_versus_itself_is_no_difference(succeed, report, runs, texts):
    total = report(runs["bpe"], texts, "--versus", runs["bpe"])["total"]
    assert (total["difference"], total["standard_error"], total["z"]) == (0, 0, None)
    assert succeed(runs["bpe"], texts, "--versus", runs["bpe"]).endswith("the two do not differ\n")


def test_versus_another_tokenizer_compares_the_bytes_that_both_score(succeed, report, runs, texts):
    reported = report(runs["bpe"], texts, "--versus", runs["char"])
    total = reported["total"]
    assert [file["file"] for file in reported["files"]] == [str(texts / "a.txt"), str(texts / "b.txt")]
    assert total["difference"] == pytest.approx(total["first_bits_per_byte"] - total["second_bits_per_byte"])
    assert total["z"] == pytest.approx(total["difference"] / total["standard_error"])
    assert total["bytes"] == sum(file["bytes"] for file in reported["files"])
    assert reported["first"]["model"]["run"] == str(runs["bpe"])
    assert reported["second"]["first_token_scored"] is False
    *_, sentence = succeed(runs["bpe"], texts, "--versus", runs["char"]).splitlines()
    better, worse = (runs["bpe"], runs["char"]) if total["difference"] < 0 else (runs["char"], runs["bpe"])
    figures = (
        f"{abs(total['difference']):.4f} ± {total['standard_error']:.4f} bits per byte (z = {abs(total['z']):.1f})"
    )
    assert sentence in (
        f"{better} is better than {worse} by {figures}",
        f"no clear difference: {better} is ahead of {worse} by {figures}",
    )


@pytest.mark.parametrize(
    "flags",
    [["--json", "--csv"], ["--per-token", "--json"], ["--csv", "--per-token"], ["--show", "--json"],
     ["--html", "x.html", "--show"], ["--versus", "RUN", "--csv"], ["--versus", "RUN", "--show"]],
)  # fmt: skip
def test_outputs_that_exclude_each_other_are_refused(capsys, runs, texts, flags):
    assert run(["perplexity", str(runs["bpe"]), str(texts), *flags]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "exclude each other" in output.err
    assert output.err.count("\n") == 1


def test_a_folder_is_no_page(capsys, runs, texts):
    assert run(["perplexity", str(runs["bpe"]), str(texts), "--html", str(texts)]) == 2
    assert "is a folder" in capsys.readouterr().err


def test_documents_are_parted_as_asked(report, runs, texts):
    (texts / "c.txt").write_text("The fox.\n---\nThe owl.\n")
    assert report(runs["bpe"], texts / "c.txt")["total"]["documents"] == 1
    assert report(runs["bpe"], texts / "c.txt", "--separator", "---")["total"]["documents"] == 2
