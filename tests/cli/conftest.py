"""Runs that several modules use."""

from __future__ import annotations

import pytest

from tests.cli.toy_translation import make_translation_run


@pytest.fixture(scope="session")
def translation_run(tmp_path_factory):
    """A run that translates word by word, backwards; see `toy_translation`."""
    return make_translation_run(tmp_path_factory.mktemp("runs") / "backwards")
