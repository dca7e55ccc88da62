"""Mutants are sampled and tested in a copy of the tree; killed ones are told from those that survive."""

import ast
import json
import subprocess
import sys

import pytest

from tests.mutants import mutations
from tests.mutants.covering import ROOT, function_at

TEST = "tests/lm/test_files.py::test_what_is_waited_for_does_not_stay_open"
MODULE = b"""
@cache
def area(x, y, is_round=False):
    if not is_round and x < 2:
        log("small")
    return min(x, y) + 3
"""


@pytest.fixture
def module(tmp_path):
    (tmp_path / "module.py").write_bytes(MODULE)
    return tmp_path / "module.py"


@pytest.mark.parametrize(
    "mutated", ["x <= 2", "x < 3", "or x < 2", "if  is_round", "is_round=True", "None\n", "max(x, y)", "- 3", "+ 4"]
)
def test_each_kind_of_mutation_is_made(module, mutated):
    found = [mutation.apply(MODULE).decode() for mutation in mutations.mutations(module.parent, module)]
    assert any(mutated in source for source in found)
    assert all(ast.dump(ast.parse(source)) != ast.dump(ast.parse(MODULE)) for source in found)


def test_two_arguments_are_swapped(module):
    module.write_text("copy(source.path, target[0], 3)\n")
    assert "copy(target[0], source.path, 3)" in [each.apply(module.read_bytes()).decode().strip()
                                                 for each in mutations.mutations(module.parent, module)]  # fmt: skip


def test_a_line_is_in_the_outermost_function_around_it(module):
    module.write_text("x = 1\nclass A:\n    y = 2\n    def f(self):\n        def g():\n            pass\n")
    assert [function_at(module, line) for line in (1, 3, 4, 6)] == [None, None, "A.f", "A.f"]


@pytest.mark.slow
def test_mutants_are_sampled_and_killed_or_not(tmp_path):
    """With a map that knows of one test, so that no test is traced first."""
    (tmp_path / "map.json").write_text(json.dumps({"tests": [[TEST, 0.1]], "failed": [], "functions": {}}))
    command = [sys.executable, "-m", "tests.mutants", "--sample", "2", "--module", "lm/files.py"]
    done = subprocess.run([*command, "--map", str(tmp_path / "map.json")], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *mutants, total = done.stdout.splitlines()
    assert all(line.startswith(("killed ", "SURVIVED ", "equivalent? ")) for line in mutants)
    assert len(mutants) == 2
    assert "of 2 mutants are killed" in total
