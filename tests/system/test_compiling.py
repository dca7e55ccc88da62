"""Compiling changes how fast a run is, and nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from tests.compiler import needs_compiler
from tests.system.conftest import SMALL
from tests.tolerances import approx

FLAGS = [*SMALL, "--d-model", "16", "--dtype", "float32", "--steps", "3"]


def losses(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def weights(folder: Path) -> list[str]:
    path = folder / "checkpoints" / (folder / "last").read_text().strip() / "model.safetensors"
    with safe_open(path, framework="numpy") as file:
        return sorted(file.keys())


def lm(*arguments: str) -> str:
    command = [sys.executable, "-m", "cli.main", *arguments]
    environment = {**os.environ, "TORCH_LOGS": "recompiles"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.slow
@needs_compiler
def test_a_compiled_run_learns_the_same_and_continues_uncompiled(place):
    """Half a minute of compiling, once: losses agree to rounding; names of weights, and what follows, are the same."""
    plain, compiled = place / "plain", place / "compiled"
    lm("train", str(place / "text.txt"), "-o", str(plain), *FLAGS)
    said = lm("train", str(place / "text.txt"), "-o", str(compiled), *FLAGS, "--set", "training.compile=true")
    assert "Recompiling" not in said
    assert losses(compiled) == approx(losses(plain), terms=64, depth=30)
    assert weights(compiled) == weights(plain)
    assert not any("_orig_mod" in name for name in weights(compiled))
    for folder in (plain, compiled):
        lm("train", "--resume", str(folder), "--steps", "6", "--set", "training.compile=false")
    assert losses(compiled) == approx(losses(plain), terms=64, depth=60)
    assert json.loads((compiled / "config.json").read_text())["training"]["compile"] is False
