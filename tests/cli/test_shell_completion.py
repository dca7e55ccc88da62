"""TAB: asked as the shells ask, with the completion scripts' own variables, in a process of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("shell", "line", "offered"),
    [
        ("bash", "lm generate ru", ["runs/letters", "runs/novel"]),
        ("zsh", "lm perplexity runs/novel x --versus runs/l", ["runs/letters"]),
        ("fish", "lm generate runs/novel/", ["runs/novel/checkpoints/step-100", "runs/novel/checkpoints/step-9"]),
        ("bash", "lm train --preset llam", ["llama-15m"]),
        ("bash", "lm generate rumours", []),
    ],
)
def test_every_shell_offers_runs_and_presets_without_torch(shell, line, offered, tmp_path):
    for checkpoint in ("novel/checkpoints/step-9", "novel/checkpoints/step-100", "letters/checkpoints"):
        (tmp_path / "runs" / checkpoint).mkdir(parents=True)
    (tmp_path / "rumours.txt").touch()
    code = "import sys; from cli.main import main\ntry: main()\nfinally: assert 'torch' not in sys.modules"
    asked = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    environment = {**os.environ, **asked, "_LM_COMPLETE": f"complete_{shell}", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=900)
    assert done.stderr == ""
    assert re.findall(r"runs/[\w/-]+|llama-\w+", done.stdout) == offered
