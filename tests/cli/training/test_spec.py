"""What contradicts itself is refused before anything is read."""

from __future__ import annotations

import pytest

from cli.main import run
from lm.config.run_spec import DataFiles


def test_validation_is_held_out_in_one_way(pairs, capsys):
    held_out = ["--validation-source", pairs[1], "--validation-target", pairs[3], "--validation", "0.2"]
    assert run(["train", *pairs, *held_out]) == 2
    assert "--validation has no effect beside --validation-source" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a corpus"),
        (
            ["text.txt", "--source", "a", "--target", "b"],
            "give either a corpus, or source and target (--source, --target)",
        ),
        (["--source", "a"], "source and target go together, or both in one file (--pairs)"),
        (
            ["--pairs", "a", "--validation-target", "b"],
            "held out go together (--validation-source, --validation-target)",
        ),
        (
            ["text.txt", "--validation-source", "a", "--validation-target", "b"],
            "--validation-target have no effect on",
        ),
        (["--resume", "run", "--preset", "tiny"], "--preset has no effect with --resume"),
        (["--source", "-", "--target", "-"], "stdin (-) stands for one file only"),
        (["--pairs", "-", "--validation-source", "-", "--validation-target", "b"], "stdin (-) stands for one file"),
        (["text.txt", "--heads", "c"], "heads are of the words of sources: give these too (--source, --pairs)"),
        (
            ["--source", "a", "--target", "b", "--validation-heads", "c"],
            "go with these, and with heads of the others (--validation-source, --heads)",
        ),
        (["text.txt", "--depth", "2", "--preset", "tiny"], "--depth 2 is the preset depth-2"),
        (["text.txt", "--portable", "--from", "run"], "--portable has no effect with --from"),
    ],
)
def test_contradictions_are_one_line(capsys, arguments, message):
    assert run(["train", *arguments]) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.err.count("\n") == 1


def test_files_have_a_first_name_whatever_they_hold():
    assert DataFiles(("a.txt", "b.txt")).first == "a.txt"
    assert DataFiles(source=("a.en",), target=("a.de",)).first == "a.en"
    assert DataFiles(pairs=("a.tsv",)).first == "a.tsv"
    assert not DataFiles()
