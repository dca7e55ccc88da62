"""When compiled code is loaded, and which."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lm.kernels import compiled

pytest.importorskip("numba")


def test_machine_code_of_other_sources_is_not_loaded(monkeypatch, tmp_path):
    compiled._folder.cache_clear()
    found = {compiled._folder()}
    root = Path(compiled.__file__).parents[1]
    for package in compiled._PACKAGES:
        (tmp_path / package).mkdir()
        for file in (root / package).glob("*.py"):
            (tmp_path / package / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(compiled, "__file__", str(tmp_path / "kernels" / "compiled.py"))
    for changed in ("kernels/products.py", "native/step.py"):
        with (tmp_path / changed).open("a") as file:
            file.write("# another line\n")
        compiled._folder.cache_clear()
        found.add(compiled._folder())
    compiled._folder.cache_clear()
    assert len(found) == 3


def test_it_is_worth_loading_when_torch_has_spent_as_much_as_that_takes(monkeypatch):
    monkeypatch.setattr(compiled, "_spent", 0.0)
    monkeypatch.delitem(sys.modules, "numba", raising=False)
    answers = [compiled.is_worth_loading(compiled._LOADING / 4) for _ in range(6)]
    assert answers == [False] * 4 + [True] * 2
    monkeypatch.setattr(compiled, "_spent", 0.0)
    assert compiled.is_worth_loading(2 * compiled._LOADING)
    monkeypatch.setitem(sys.modules, "numba", sys)
    assert compiled.is_worth_loading(0.0)


@pytest.mark.parametrize("written", [None, "another processor"])
def test_it_is_ready_when_it_was_made_for_this_processor(written, monkeypatch, tmp_path):
    monkeypatch.setattr(compiled, "_folder", lambda: tmp_path)
    monkeypatch.setattr(compiled, "processor", lambda: "this one")
    for question in (compiled.is_compiled, compiled._is_of_this_processor):
        question.cache_clear()
    if written is not None:
        (tmp_path / "processor").write_text(written)
    assert not compiled.is_ready()
    compiled.note_compiled()
    assert compiled.is_ready() == compiled.is_installed()
    for question in (compiled.is_compiled, compiled._is_of_this_processor):
        question.cache_clear()


def test_whether_code_is_ready_is_known_without_the_compiler(tmp_path):
    """Which takes its time to be loaded."""
    asked = "import sys; from lm.kernels import compiled; compiled.note_compiled(); compiled.is_ready(); "
    told = subprocess.run(
        [sys.executable, "-c", asked + "print('numba' in sys.modules)"], env={**os.environ, "LM_CACHE": str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert told.stdout.strip() == "False"
