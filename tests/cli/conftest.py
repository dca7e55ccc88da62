"""Runs and terminals that several modules use."""

import json
import sys

import pytest

from cli.main import run
from tests.cli.terminal import Terminal
from tests.system.conftest import place  # noqa: F401 (a fixture)
from tests.tiny_runs import RUNS


@pytest.fixture(scope="session")
def translation_run():
    """A run that translates word by word, backwards; see `toy_translation`."""
    return RUNS / "translation"


@pytest.fixture
def report(capsys):
    """Runs `lm perplexity … --json`; returns what it printed."""

    def succeed(*arguments) -> dict:
        code = run(["perplexity", *map(str, arguments), "--json"])
        output = capsys.readouterr()
        assert code == 0, output.err
        return json.loads(output.out)

    return succeed


@pytest.fixture
def terminal(monkeypatch):
    """Opens a terminal of a width, which stdout and stderr are written to."""

    def open_terminal(width: int) -> Terminal:
        for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLORTERM"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setenv("COLUMNS", str(width))
        made = Terminal()
        monkeypatch.setattr(sys, "stdout", made)
        monkeypatch.setattr(sys, "stderr", made)
        return made

    return open_terminal
