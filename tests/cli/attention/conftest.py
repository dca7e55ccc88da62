"""A run that continues texts, and the command on it."""

from __future__ import annotations

import pytest

from cli.main import run
from tests.cli.small_runs import make_run


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "gpt", n_layers=3, context_length=64)


@pytest.fixture
def succeed(capsys):
    """Runs `lm attention …`; returns what it printed."""

    def call(*arguments) -> str:
        code = run(["attention", *map(str, arguments)])
        output = capsys.readouterr()
        assert code == 0, output.err
        return output.out

    return call
