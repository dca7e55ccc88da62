"""`lm evaluate`: scores are sacreBLEU's, a verdict says no more than a test allows, and classifiers are counted."""

import json
import random

import pytest
import sacrebleu

from cli.evaluation_report import classification_to_dict, print_classification, verdict
from cli.main import run
from lm.evaluation.classification import ClassificationScores
from lm.evaluation.translation_scores import TranslationScore
from tests.cli.small_runs import TEXT, make_run
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


def test_source_and_target_in_one_file_are_scored_as_those_in_two(succeed, translation_run, files):
    sides = [lines(files / name) for name in ("test.en", "test.de")]
    (files / "test.tsv").write_text("".join(f"{one}\t{other}\n" for one, other in zip(*sides, strict=True)))
    (files / "test.csv").write_text("n,german,english\n" + "".join(f"1,{b},{a}\n" for a, b in zip(*sides, strict=True)))
    expected = json.loads(succeed(translation_run, "--source", "test.en", "--target", "test.de", "--json"))
    columns = ["--source-column", "3", "--target-column", "german"]
    for file, flags in (("test.tsv", []), ("test.csv", columns)):
        assert json.loads(succeed(translation_run, "--pairs", file, *flags, "--json")) == expected


def test_the_table_says_what_the_figures_depend_on(succeed, files):
    exact = sum(map(str.__eq__, lines(files / "worse.de"), lines(files / "test.de")))
    table = succeed("--hypotheses", "worse.de", "--target", "test.de").splitlines()
    assert table[0].split() == ["metric", "system", "score,", "%", "95%", "interval"]
    assert [line.split()[0] for line in table[1:4]] == ["BLEU", "chrF2", "TER"]
    assert table[4] == f"12 lines; identical to a reference: {exact} of worse.de"
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
    assert "±" not in succeed(*flags)


def test_a_run_can_be_compared_with_a_run_or_a_file(succeed, translation_run):
    flags = ["--source", "test.en", "--target", "test.de"]
    report = json.loads(succeed("--hypotheses", "worse.de", *flags, "--versus", translation_run, "--json"))
    alone = json.loads(succeed(translation_run, *flags, "--json"))
    for metric, figures in alone["scores"].items():
        assert report["second"]["scores"][metric]["value"] == figures["value"]


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


@pytest.mark.parametrize(
    ("difference", "p_value", "expected"),
    [
        (2.0, 0.01, "ours is better than theirs by 2.00 BLEU (p = 0.010)"),
        (2.0, 0.05, "no clear difference: ours is ahead of theirs by 2.00 BLEU (p = 0.050)"),
        (2.0, None, "ours is ahead of theirs by 2.00 BLEU; whether by chance is not tested"),
        (0.0, 1.0, "the two do not differ in BLEU"),
    ],
)
def test_a_verdict(difference, p_value, expected):
    first = TranslationScore("BLEU", 30.0, mean=30.1, half_width=1.5, signature="nrefs:1")
    second = TranslationScore("BLEU", 30.0 - difference, None, None, "nrefs:1", p_value)
    assert verdict(first, second, ("ours", "theirs")) == expected


def test_what_fits_the_run_is_measured(succeed, capsys, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    folder = make_run(tmp_path / "run")
    report = json.loads(succeed(folder, tmp_path / "text.txt", "--json"))
    assert run(["perplexity", str(folder), str(tmp_path / "text.txt"), "--json"]) == 0
    assert report == json.loads(capsys.readouterr().out)


REPORT = """\
accuracy 62.5% (95% interval 30.6% to 86.3%): 5 of 8 held-out examples by runs/a
majority baseline 50.0%: always 'joy'
macro F1 0.444

label  precision  recall     F1  support
anger          –   0.000  0.000        1
fear       0.667   0.667  0.667        3
joy        0.600   0.750  0.667        4

confusion matrix: a row for each label, a column for each prediction
       anger  fear  joy
anger      0     0    1
fear       0     2    1
joy        0     1    3
"""

EXPECTED = ["joy", "joy", "joy", "joy", "fear", "fear", "fear", "anger"]
PREDICTED = ["joy", "joy", "joy", "fear", "fear", "fear", "joy", "joy"]


def test_the_page_of_scores(capsys):
    scores = ClassificationScores.from_predictions(EXPECTED, PREDICTED)
    print_classification(scores, run="runs/a", examples="held-out examples")
    assert capsys.readouterr().out == REPORT


def test_json_has_the_same_unrounded():
    scores = ClassificationScores.from_predictions(EXPECTED, PREDICTED, known=["joy", "fear"])
    report = classification_to_dict(scores, run="runs/a")
    low, high = scores.interval
    assert report["interval"] == {"low": low, "high": high, "confidence": 0.95, "method": "wilson"}
    assert (report["accuracy"], report["macro_f1"]) == (5 / 8, pytest.approx(4 / 9))
    assert report["majority"] == {"label": "joy", "accuracy": 0.5}
    assert report["confusion"] == {"labels": ("anger", "fear", "joy"), "matrix": [[0, 0, 1], [0, 2, 1], [0, 1, 3]]}
    assert report["unknown"] == {"anger": 1}
    assert report["labels"][1] == {"label": "fear", "precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3, "support": 3,
                                   "predicted": 3}  # fmt: skip
