"""Ctrl-C never leaves a module half imported."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SLOW = """
import os, signal, time
os.kill(os.getpid(), signal.SIGINT)
time.sleep(0.2)
is_complete = True
"""
PROGRAM = """
import sys, time
from cli.interrupts import defer_interrupt_during_imports
defer_interrupt_during_imports()
try:
    import slow
    time.sleep(60)
except KeyboardInterrupt:
    print(sys.modules["slow"].is_complete)
"""


def test_an_interrupt_during_an_import_comes_after_it(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]\n{PROGRAM}"],
        capture_output=True, text=True, check=True, timeout=50,
    )  # fmt: skip
    assert done.stdout == "True\n"
