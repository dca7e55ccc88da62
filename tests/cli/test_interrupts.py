"""Ctrl-C never leaves a module half imported, and is not lost in a finaliser."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = {
    "outer.py": "import inner\nis_complete = True\n",
    "inner.py": "import signal\nsignal.raise_signal(signal.SIGINT)\nis_complete = True\n",
    "freed.py": """
import signal
class Freed:
    def __del__(self):
        global is_complete
        signal.raise_signal(signal.SIGINT)
        is_complete = True
""",
    "missing.py": "import signal\nsignal.raise_signal(signal.SIGINT)\nimport nosuch\n",
}
PROGRAM = """
import sys
from cli.interrupts import defer_interrupts
defer_interrupts()

def load():
    {statement}
    print("continued")

try:
    load()
except KeyboardInterrupt:
    print(*sorted(name for name in ("freed", "inner", "outer") if getattr(sys.modules.get(name), "is_complete", False)))
try:
    import signal; signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("again", sys.gettrace())
"""


@pytest.mark.parametrize(
    ("statement", "complete"),
    [
        ("import outer", "inner outer"),
        ("from outer import is_complete", "inner outer"),
        ("return __import__('importlib').import_module('inner')", "inner"),
        ("import ctypes; ctypes.pythonapi.PyImport_ImportModule(b'outer')", "inner outer"),
        ("import freed\n    freed.Freed()", "freed"),
        ("import contextlib\n    with contextlib.suppress(ImportError): import missing", ""),
    ],
)
def test_an_interrupt_during_an_import_or_a_finaliser_comes_right_after_it(statement, complete, tmp_path):
    for name, text in MODULES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]\n{PROGRAM.format(statement=statement)}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=900)
    assert done.stdout == f"{complete}\nagain None\n"
