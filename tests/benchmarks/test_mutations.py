"""The measure of the tests still runs: on a copy of the tree it tells a change that they notice from one they don't."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.benchmarks.covering import ROOT

TEST = "tests/lm/test_files.py::test_what_is_waited_for_does_not_stay_open"


@pytest.mark.slow
def test_changes_are_drawn_made_and_noticed_or_not(tmp_path):
    """With a map that knows of one test, so that no test is traced first."""
    known = {"tests": [[TEST, 0.1]], "failed": [], "lines": {}}
    (tmp_path / "map.json").write_text(json.dumps(known))
    command = [sys.executable, "-m", "tests.benchmarks.mutations", "--count", "2", "--module", "lm/files.py"]
    told = subprocess.run([*command, "--map", str(tmp_path / "map.json")], cwd=ROOT, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    *changes, total = told.stdout.splitlines()
    assert all(line.startswith(("noticed   lm/files.py:", "UNNOTICED lm/files.py:")) for line in changes)
    assert len(changes) == 2
    assert "of 2 changes are noticed" in total
