"""A cache of the tests: in pytest's own cache, never in the user's."""

import tempfile
from pathlib import Path

import pytest

TEMPORARY = pytest.StashKey[tempfile.TemporaryDirectory]()


def kept_folder(config: pytest.Config, name: str) -> Path:
    """Return a folder that outlives this run of the tests, unless pytest runs without its cache."""
    cache = getattr(config, "cache", None)
    if cache is not None:
        return cache.mkdir(name)
    if TEMPORARY not in config.stash:
        config.stash[TEMPORARY] = tempfile.TemporaryDirectory(prefix="lm-tests-", ignore_cleanup_errors=True)
        config.add_cleanup(config.stash[TEMPORARY].cleanup)
    return Path(config.stash[TEMPORARY].name, name)
