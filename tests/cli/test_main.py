"""The app itself."""

from __future__ import annotations

from importlib.metadata import version

import torch

from cli.main import run
from lm.config import HardwareConfig
from lm.hardware import inference_hardware


def test_the_version_says_with_which_torch_and_on_what(capsys):
    assert run(["--version"]) == 0
    device = inference_hardware(HardwareConfig()).device
    said = capsys.readouterr().out
    assert said.startswith(f"lm {version('lm-toolkit')} (torch {torch.__version__}, {device}")
    threads = inference_hardware(HardwareConfig()).threads
    assert said.endswith(f", {threads} threads)\n" if threads > 1 else ", 1 thread)\n")
