"""`lm evaluate` on translations: scores are sacreBLEU's, and a verdict says no more than a test allows."""

import json
import random

import pytest
import sacrebleu

from cli.main import run
from cli.translation.evaluation import (
    SystemOutput,
    print_comparisons,
    print_comparisons_json,
    print_scores,
    print_scores_json,
    read_lines,
    verdict,
    warn_of_tokenized_text,
    write_system,
)
from lm.config.evaluation import ScoringConfig
from lm.errors import InputError, UsageError
from lm.evaluation.translation_scores import SystemComparison, TranslationScore
from tests.cli.toy_translation import LONGEST, pairs


@pytest.fixture
def files(tmp_path):
    """Sources and references of a translation of whole sentences, and two files of translations."""
    known = [pair for pair in pairs(200, seed=321) if len(pair[0].split()) == LONGEST][:12]
    sources, targets = zip(*known, strict=True)
    draw = random.Random(1)
    worse = [" ".join(word if draw.random() < 0.7 else "x" for word in target.split()) for target in targets]
    for name, lines in {
        "test.en": sources,
        "test.de": targets,
        "worse.de": worse,
        "upper.de": map(str.upper, targets),
    }.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    return tmp_path


@pytest.fixture
def succeed(capsys, files, monkeypatch):
    """Runs `lm evaluate …` where the files are; returns what it printed."""
    monkeypatch.chdir(files)

    def call(*arguments) -> str:
        code = run(["evaluate", *map(str, arguments)])
        output = capsys.readouterr()
        assert code == 0, output.err
        return output.out

    return call


RUNS = {
    "GPT": {},
    "OLD": {"supervised": True},
    "LABELS": {"supervised": True, "label_completions": ("\nb", "\nc")},
    "MASKED": {"objective": "masked", "labels": ("b", "c")},
    "FILLS": {"objective": "masked"},
}


def lines(path):
    return path.read_text().splitlines()


def test_a_run_is_scored_by_what_it_writes(succeed, translation_run, files):
    flags = ["--source", "test.en", "--target", "test.de"]
    report = json.loads(succeed(translation_run, *flags, "-o", "out.de", "--json"))
    written, references = lines(files / "out.de"), lines(files / "test.de")
    assert len(written) == len(references) == report["lines"]
    assert 0.8 * len(references) <= sum(map(str.__eq__, written, references)) == report["exact"]
    assert report["scores"]["BLEU"]["value"] == pytest.approx(sacrebleu.corpus_bleu(written, [references]).score)
    assert report["scores"]["TER"]["value"] == pytest.approx(sacrebleu.corpus_ter(written, [references]).score)
    again = json.loads(succeed("--hypotheses", "out.de", "--target", "test.de", "--json"))
    assert again["scores"] == report["scores"]


def test_source_and_target_in_one_file_are_scored_as_those_in_two(succeed, translation_run, files, capsys):
    sides = [lines(files / name) for name in ("test.en", "test.de")]
    (files / "test.tsv").write_text("".join(f"{one}\t{other}\n" for one, other in zip(*sides, strict=True)))
    rows = [json.dumps({"n": 1, "en": one, "de": other}) + "\n" for one, other in zip(*sides, strict=True)]
    (files / "test.jsonl").write_text("".join(rows))
    (files / "test.csv").write_text("n,german,english\n" + "".join(f"1,{b},{a}\n" for a, b in zip(*sides, strict=True)))
    expected = json.loads(succeed(translation_run, "--source", "test.en", "--target", "test.de", "--json"))
    named = ["--source-column", "en", "--target-column", "de"], ["--source-column", "3", "--target-column", "german"]
    for file, flags in (("test.tsv", []), ("test.jsonl", named[0]), ("test.csv", named[1])):
        assert json.loads(succeed(translation_run, "--pairs", file, *flags, "--json")) == expected
    finished = json.loads(succeed("--hypotheses", "worse.de", "--target", "test.de", "--json"))
    assert json.loads(succeed("--hypotheses", "worse.de", "--pairs", "test.tsv", "--json")) == finished
    (files / "short.de").write_text("eins\n")
    for code, flags, message in (
        (2, ["--pairs", "test.tsv", "--target", "test.de"], "leave out --source and --target, or --pairs"),
        (1, ["--pairs", "test.tsv", "--versus", "short.de"], "short.de: has 1 line, and there are"),
    ):
        assert run(["evaluate", str(translation_run), *flags]) == code
        assert message in capsys.readouterr().err


def test_the_table_says_what_the_figures_depend_on(succeed, files):
    exact = sum(map(str.__eq__, lines(files / "worse.de"), lines(files / "test.de")))
    table = succeed("--hypotheses", "worse.de", "--target", "test.de").splitlines()
    assert table[0].split() == ["metric", "score", "95%", "interval"]
    assert [line.split()[0] for line in table[1:4]] == ["BLEU", "chrF2", "TER"]
    assert table[4] == f"12 lines of worse.de, {exact} of them identical to a reference"
    assert table[5] == (
        f"BLEU|nrefs:1|bs:1000|seed:12345|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    )


def test_two_systems_are_compared(succeed, translation_run):
    flags = ["--source", "test.en", "--target", "test.de", "--versus", "worse.de"]
    report = json.loads(succeed(translation_run, *flags, "--json"))
    assert report["second"]["system"] == "worse.de"
    for metric in ("BLEU", "chrF2"):
        assert report["difference"][metric] > 0
        assert report["p_value"][metric] < 0.05
    assert report["difference"]["TER"] < 0
    text = succeed(translation_run, *flags)
    assert text.splitlines()[-1].startswith(f"{translation_run} is better than worse.de by ")


def test_without_resamples_a_comparison_tests_nothing(succeed):
    flags = ["--hypotheses", "test.de", "--target", "test.de", "--versus", "worse.de", "--resamples", "0"]
    report = json.loads(succeed(*flags, "--json"))
    assert report["first"]["scores"]["BLEU"]["value"] == pytest.approx(100)
    assert set(report["p_value"].values()) == {None}
    assert {report[one]["scores"]["BLEU"]["mean"] for one in ("first", "second")} == {None}
    text = succeed(*flags)
    assert "±" not in text
    assert "bootstrap" not in text
    assert text.splitlines()[-1].startswith("test.de is ahead of worse.de by ")


def test_a_run_can_be_compared_with_a_run_or_a_file(succeed, translation_run):
    flags = ["--source", "test.en", "--target", "test.de"]
    report = json.loads(succeed("--hypotheses", "worse.de", *flags, "--versus", translation_run, "--json"))
    alone = json.loads(succeed(translation_run, *flags, "--json"))
    for metric, figures in alone["scores"].items():
        assert report["second"]["scores"][metric]["value"] == figures["value"]
        assert report["second"]["scores"][metric]["signature"] == figures["signature"]
    same = succeed(translation_run, *flags, "--versus", translation_run)
    assert same.endswith("the two do not differ in BLEU\n")


def test_case_counts_unless_told_otherwise(succeed):
    cased = json.loads(succeed("--hypotheses", "upper.de", "--target", "test.de", "--json"))
    uncased = json.loads(
        succeed("--hypotheses", "upper.de", "--target", "test.de", "--json", "--lowercase", "--tokenize", "none")
    )
    assert cased["scores"]["BLEU"]["value"] < 5
    assert uncased["scores"]["BLEU"]["value"] == pytest.approx(100)
    assert "case:lc|eff:no|tok:none" in uncased["scores"]["BLEU"]["signature"]


def test_the_best_of_several_references_counts(succeed):
    report = json.loads(
        succeed("--hypotheses", "worse.de", "--target", "upper.de", "--target", "worse.de", "--json", "--resamples", 0)
    )
    assert report["scores"]["BLEU"]["value"] == pytest.approx(100)
    assert report["scores"]["BLEU"]["signature"].startswith("nrefs:2|")
    assert report["scores"]["BLEU"]["mean"] is None


def test_tokenized_text_is_noticed(capsys, files):
    (files / "tok.de").write_text("".join(f"{line} .\n" for line in lines(files / "test.de")))
    arguments = ["evaluate", "--hypotheses", str(files / "tok.de"), "--target", str(files / "tok.de")]
    assert run(arguments) == 0
    assert "look tokenized" in capsys.readouterr().err
    assert run([*arguments, "--tokenize", "none"]) == 0
    assert capsys.readouterr().err == ""


BLEU = TranslationScore("BLEU", 30.0, mean=30.1, half_width=1.5, signature="nrefs:1")

NAMES = ("ours", "theirs")


def comparison(difference: float, p_value: float | None) -> SystemComparison:
    other = TranslationScore("BLEU", 30.0 - difference, mean=None, half_width=None, signature="nrefs:1")
    return SystemComparison(BLEU, other, p_value)


@pytest.mark.parametrize(
    ("difference", "p_value", "expected"),
    [
        (2.0, 0.01, "ours is better than theirs by 2.00 BLEU (p = 0.010)"),
        (-2.0, 0.01, "theirs is better than ours by 2.00 BLEU (p = 0.010)"),
        (2.0, 0.05, "no clear difference: ours is ahead of theirs by 2.00 BLEU (p = 0.050)"),
        (2.0, None, "ours is ahead of theirs by 2.00 BLEU; whether by chance is not tested"),
        (0.0, 1.0, "the two do not differ in BLEU"),
    ],
)
def test_a_verdict(difference, p_value, expected):
    assert verdict(comparison(difference, p_value), NAMES) == expected


COMPARISON = """\
metric  first  95% interval  second  95% interval  difference      p
BLEU    30.00  30.10 ± 1.50   28.00             –       +2.00  0.012
TER     50.00  –              51.50             –       -1.50      –
1,200 lines; first: ours, second: theirs; p by paired bootstrap resampling
BLEU|nrefs:1
TER|nrefs:2
ours is better than theirs by 2.00 BLEU (p = 0.012)
"""


def test_the_table_and_json_of_two_systems_have_each_metric_and_the_verdict_on_bleu(capsys):
    error = [TranslationScore("TER", value, mean=None, half_width=None, signature="nrefs:2") for value in (50.0, 51.5)]
    compared = [comparison(2.0, 0.0123), SystemComparison(*error, None)]
    print_comparisons(compared, NAMES, lines=1200)
    assert capsys.readouterr().out == COMPARISON
    print_comparisons(compared[1:], NAMES, lines=1)
    assert capsys.readouterr().out.splitlines()[2] == "1 lines; first: ours, second: theirs"
    print_comparisons_json(compared, NAMES, lines=1200)
    report = json.loads(capsys.readouterr().out)
    assert (report["first"]["system"], report["second"]["system"], report["lines"]) == (*NAMES, 1200)
    assert (report["difference"], report["p_value"]) == ({"BLEU": 2.0, "TER": -1.5}, {"BLEU": 0.0123, "TER": None})
    assert [report[place]["scores"]["TER"]["value"] for place in ("first", "second")] == [50.0, 51.5]


def test_the_table_and_json_have_the_same_figures(capsys):
    print_scores([BLEU], name="ours", lines=12, exact=3)
    table = capsys.readouterr().out
    assert "30.00" in table
    assert "30.10 ± 1.50" in table
    assert table.splitlines()[-1] == "BLEU|nrefs:1"
    print_scores_json([BLEU], name="ours", lines=12, exact=3)
    report = json.loads(capsys.readouterr().out)
    assert report["scores"]["BLEU"] == {"value": 30.0, "signature": "nrefs:1", "mean": 30.1, "half_width": 1.5}
    assert (report["system"], report["lines"], report["exact"]) == ("ours", 12, 3)


@pytest.fixture
def systems(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, lines in {"out": "a\nb\n", "one.de": "x\ny\n", "two.de": "v\nw\n", "short.de": "x\n"}.items():
        (tmp_path / name).write_text(lines)
    return tmp_path


def test_lines_and_those_of_each_reference(systems):
    assert read_lines("out", ["one.de", "two.de"]) == (["a", "b"], [["x", "y"], ["v", "w"]])


def test_files_of_different_lengths_are_refused(systems):
    with pytest.raises(InputError, match="has 2 lines and short.de has 1 line:"):
        read_lines("out", ["short.de"])
    with pytest.raises(UsageError, match="name one"):
        read_lines("*.de", ["one.de"])


def test_translations_are_written_line_by_line(systems, capsys):
    write_system(systems / "written", SystemOutput("run", ["a", "", "b"]))
    assert (systems / "written").read_text() == "a\n\nb\n"
    assert capsys.readouterr().err == f"wrote {systems / 'written'}\n"


@pytest.mark.parametrize(
    ("lines", "tokenize", "warned"),
    [(["a .", "b .", "c."], "13a", True), (["a .", "b ."], "none", False), (["a.", "b ."], "13a", False)],
)
def test_tokenized_text_is_noted(capsys, lines, tokenize, warned):
    warn_of_tokenized_text(SystemOutput("run", lines), ScoringConfig(tokenize=tokenize))
    assert ("look tokenized" in capsys.readouterr().err) is warned
