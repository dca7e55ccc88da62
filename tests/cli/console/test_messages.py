"""Lines about progress fit a terminal, command none, and are whole in a pipe."""

from __future__ import annotations

import subprocess
import sys

import pytest
from rich.cells import cell_len

from cli.console.messages import print_labelled, print_note, print_paragraph

LONG = "300 steps of 8 x 128 tokens: 5.2 epochs, 0.0627 tokens of text a parameter, 1.84 TFLOPs, and so on and on"


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(width, terminal):
    screen = terminal(width)
    print_labelled("plan", LONG)
    print_paragraph(LONG)
    assert max(map(cell_len, screen.lines)) <= width
    assert " ".join(screen.getvalue().split()) == f"plan {LONG} {LONG}"


def test_a_pipe_gets_a_line_for_each(capsys):
    print_labelled("plan", LONG)
    print_note("wrote a\x1bb.txt")
    print_paragraph(LONG)
    output = capsys.readouterr()
    assert output.err == f"plan    {LONG}\nwrote a␛b.txt\n"
    assert output.out == LONG + "\n"


@pytest.mark.parametrize("module", ["messages", "numbers", "tables", "progress", "curves", "heat_map"])
def test_what_prints_imports_nothing_of_models_and_training(module):
    """Only which of several processes this is, which is told without torch."""
    code = (
        f"import sys; import cli.console.{module}\n"
        "known = {name for name in sys.modules if name.startswith(('lm.', 'torch', 'cli.training'))}\n"
        "known -= {'lm.distributed', 'lm.distributed.launcher_env'}\n"
        "sys.exit(f'{known}' if known else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
