"""Runs that several modules use."""

from __future__ import annotations

import json

import pytest

from cli.main import run
from tests.cli.toy_translation import make_translation_run


@pytest.fixture(scope="session")
def translation_run(tmp_path_factory):
    """A run that translates word by word, backwards; see `toy_translation`."""
    return make_translation_run(tmp_path_factory.mktemp("runs") / "backwards")


@pytest.fixture
def report(capsys):
    """Runs `lm perplexity … --json`; returns what it printed."""

    def succeed(*arguments) -> dict:
        code = run(["perplexity", *map(str, arguments), "--json"])
        output = capsys.readouterr()
        assert code == 0, output.err
        return json.loads(output.out)

    return succeed
