"""Files are measured by the kind of run and by what is asked for."""

from __future__ import annotations

import pytest

from cli.flags.options import ParsedOptions
from cli.perplexity import files as module
from cli.perplexity.files import measure_files
from cli.perplexity.request import ReportFormat
from tests.cli.small_runs import make_run

GIVEN = ParsedOptions({"files": {}, "perplexity": {}, "data": {}, "hardware": {}, "workers": {}}, {})


@pytest.fixture
def called(monkeypatch):
    """The names of the reports that were made."""
    names: list[str] = []
    monkeypatch.setattr(module, "measure_text", lambda *_: names.append("text"))
    monkeypatch.setattr(module, "_compare", lambda *_, **__: names.append("versus"))
    monkeypatch.setattr(module, "measure_examples", lambda *_: names.append("examples"))
    return names


def test_text_examples_and_two_models_have_a_report_each(called, runs, texts, tmp_path):
    supervised = make_run(tmp_path / "supervised", supervised=True)
    (tmp_path / "examples.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    alone, against = (ReportFormat(False, False, False, False, None, versus) for versus in (None, runs["char"]))
    measure_files(runs["bpe"], [str(texts / "a.txt")], alone, GIVEN)
    measure_files(runs["bpe"], [str(texts / "a.txt")], against, GIVEN)
    measure_files(supervised, [str(texts / "a.txt")], alone, GIVEN)
    measure_files(supervised, [str(tmp_path / "examples.jsonl")], alone, GIVEN)
    assert called == ["text", "versus", "text", "examples"]
