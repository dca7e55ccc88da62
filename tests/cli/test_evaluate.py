"""`lm evaluate`: scores are sacreBLEU's, a verdict says no more than a test allows, and classifiers are counted."""

import json
import random

import pytest
import sacrebleu

from cli.evaluation_report import classification_to_dict, print_classification
from cli.main import run
from lm.evaluation.metrics import ClassificationScores
from tests.cli.small_runs import TEXT, make_run
from tests.cli.toy_translation import LONGEST, pairs


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    """Sources and references of a translation of whole sentences, and two files of translations: where commands run."""
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
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines(path):
    return path.read_text().splitlines()


def scores(succeed, *arguments, field="value"):
    """A field of the scores by system and metric."""
    rows = json.loads(succeed("evaluate", *arguments, "--json"))["scores"]
    return {(row["system"], row["metric"]): row[field] for row in rows}


def test_a_run_is_scored_by_what_it_translates(succeed, translation_run, files):
    found = scores(succeed, translation_run, "--source", "test.en", "--target", "test.de")
    assert run(["translate", str(translation_run), "test.en", "-o", "out.de"]) == 0
    written, references = lines(files / "out.de"), lines(files / "test.de")
    assert found[str(translation_run), "BLEU"] == pytest.approx(sacrebleu.corpus_bleu(written, [references]).score)
    assert found[str(translation_run), "BLEU"] > 80
    again = scores(succeed, "--hypotheses", "out.de", "--target", "test.de")
    assert [*again.values()] == [*found.values()]


def test_source_and_target_in_one_file_are_scored_as_those_in_two(succeed, translation_run, files):
    sides = [lines(files / name) for name in ("test.en", "test.de")]
    (files / "test.tsv").write_text(
        "en\tde\n" + "".join(f"{one}\t{other}\n" for one, other in zip(*sides, strict=True))
    )
    (files / "test.csv").write_text("n,german,english\n" + "".join(f"1,{b},{a}\n" for a, b in zip(*sides, strict=True)))
    expected = scores(succeed, translation_run, "--source", "test.en", "--target", "test.de")
    columns = ["--source-column", "3", "--target-column", "german"]
    for file, flags in (("test.tsv", []), ("test.csv", columns)):
        assert scores(succeed, translation_run, file, *flags) == expected


def test_the_table_says_what_the_figures_depend_on(succeed):
    table = succeed("evaluate", "--hypotheses", "worse.de", "--target", "test.de").splitlines()
    assert [line.split()[0] for line in table[1:4]] == ["BLEU", "chrF2", "TER"]
    assert table[5] == (
        f"BLEU|nrefs:1|bs:1000|seed:12345|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    )


def test_two_systems_are_compared(succeed, translation_run):
    pair = ["--source", "test.en", "--target", "test.de"]
    flags = [translation_run, *pair, "--versus", "worse.de"]
    found, p_values = (scores(succeed, *flags, field=field) for field in ("value", "p_value"))
    assert found[str(translation_run), "BLEU"] > found["worse.de", "BLEU"]
    assert p_values["worse.de", "BLEU"] < 0.05
    assert found.items() >= scores(succeed, "--hypotheses", "worse.de", *pair).items()


def test_case_counts_unless_told_otherwise_and_the_best_of_several_references(succeed):
    upper = ["--hypotheses", "upper.de", "--target", "test.de", "--resamples", 0]
    assert scores(succeed, *upper)["upper.de", "BLEU"] < 5
    uncased = [*upper, "--lowercase", "--tokenize", "none"]
    assert scores(succeed, *uncased)["upper.de", "BLEU"] == pytest.approx(100)
    assert "case:lc|eff:no|tok:none" in scores(succeed, *uncased, field="signature")["upper.de", "BLEU"]
    assert scores(succeed, *upper, "--target", "upper.de")["upper.de", "BLEU"] == pytest.approx(100)


def test_what_fits_the_run_is_measured(succeed, capsys, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    folder = make_run(tmp_path / "run")
    report = json.loads(succeed("evaluate", folder, tmp_path / "text.txt", "--json"))
    assert run(["perplexity", str(folder), str(tmp_path / "text.txt"), "--json"]) == 0
    assert report == json.loads(capsys.readouterr().out)


REPORT = """\
accuracy 62.5% (95% interval 30.6% to 86.3%): 5 of 8 examples by runs/a
majority baseline 50.0%: always 'joy'
macro F1 0.444

label  precision  recall     f1  support
anger          –   0.000  0.000        1
fear       0.667   0.667  0.667        3
joy        0.600   0.750  0.667        4
"""

EXPECTED = ["joy", "joy", "joy", "joy", "fear", "fear", "fear", "anger"]
PREDICTED = ["joy", "joy", "joy", "fear", "fear", "fear", "joy", "joy"]


def test_the_page_of_scores_and_json(capsys):
    scores = ClassificationScores.from_predictions(EXPECTED, PREDICTED, known=["joy", "fear"])
    report = classification_to_dict(scores, run="runs/a")
    print_classification(report)
    assert capsys.readouterr().out == REPORT
    assert (report["accuracy"], report["macro_f1"]) == (5 / 8, pytest.approx(4 / 9))
    assert report["confusion"] == [[0, 0, 1], [0, 2, 1], [0, 1, 3]]
    assert report["unknown"] == {"anger": 1}
