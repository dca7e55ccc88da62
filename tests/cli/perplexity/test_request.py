"""Forms of a report that exclude each other are refused."""

from __future__ import annotations

import pytest

from cli.main import run


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
