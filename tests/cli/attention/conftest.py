"""A run that continues texts, and the command on it."""

from __future__ import annotations

import pytest

from tests.cli.small_runs import make_run


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "gpt", n_layers=3, context_length=64)
