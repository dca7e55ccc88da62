"""Training tells what it does on stderr, and a summary on stdout if it is asked for."""

from __future__ import annotations

import json

from cli.main import run
from lm.distributed.placement import Placement
from tests.system.conftest import SMALL


def test_stdout_has_only_what_is_asked_for(place, tmp_path, capsys):
    folder = tmp_path / "run"
    assert run(["train", str(place / "text.txt"), "-o", str(folder), "--steps", "5", "--json", *SMALL]) == 0
    output = capsys.readouterr()
    summary = json.loads(output.out)
    assert (summary["run"], summary["steps"], summary["finished"]) == (str(folder), 5, True)
    assert summary["best_step"] == 5
    assert "\x1b" not in output.err
    assert "validation loss" in output.err
    assert f'next    lm generate {folder} "..."\n' in output.err
    assert run(["train", "--resume", str(folder), "--steps", "6"]) == 0
    assert capsys.readouterr().out == ""


def test_a_lack_of_memory_names_the_options_that_help(place, tmp_path, capsys, monkeypatch):
    def fails(self, batch):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")

    monkeypatch.setattr(Placement, "__call__", fails)
    assert run(["train", str(place / "text.txt"), "-o", str(tmp_path / "run"), "--steps", "5", *SMALL]) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("lm: ")]
    assert "4 x 16 tokens in one pass" in line
    assert line.endswith("(--micro-batch-size, --checkpoint-activations)")
