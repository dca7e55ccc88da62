"""Training tells what it does on stderr, and a summary on stdout if it is asked for."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cli.main import run
from cli.training.running import advise_against_baseline
from lm.distributed.strategy import ParallelStrategy
from lm.run_folder import find_checkpoint, load_state
from lm.training.events import Event
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


def test_a_best_loss_of_zero_is_reported_like_any_other(place, tmp_path, capsys, monkeypatch):
    """As of a classifier that is certain."""
    losses = iter([(0.0, 100), (2.0, 100)])
    monkeypatch.setattr("lm.training.evaluation.compute_validation_loss", lambda run: next(losses))
    settings = ["--steps", "4", "--evaluate-every", "2", *SMALL]
    assert run(["train", str(place / "text.txt"), "-o", str(tmp_path / "run"), *settings]) == 0
    assert "at step 2; 2 later steps changed the loss by +0.0200" in capsys.readouterr().err


def test_a_model_that_has_overfit_is_not_advised_to_train_longer(tmp_path):
    assert "train longer" in advise_against_baseline(tmp_path, has_overfit=False)
    assert advise_against_baseline(tmp_path, has_overfit=True) == "train on more text"


def test_an_observer_that_fails_is_left_out_with_a_warning(place, tmp_path, capsys, monkeypatch):
    """As TensorBoard on a full disk, or a display of which something is wrong."""
    seen = []

    @contextmanager
    def recorder(run: Path, *, first_step: int) -> Iterator[Callable[[Event], None]]:
        def record(event: Event) -> None:
            seen.append(event)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        yield record
        raise ValueError("closed")

    monkeypatch.setattr("cli.training.running.open_recorder", recorder)
    monkeypatch.setattr("cli.training.running.has_recordings", lambda run: True)
    monkeypatch.setattr("cli.training.display.format_duration", lambda seconds: 1 / 0)
    folder = tmp_path / "run"
    assert run(["train", str(place / "text.txt"), "-o", str(folder), "--steps", "5", *SMALL]) == 0
    said = capsys.readouterr().err
    assert load_state(find_checkpoint(folder, which="last")).finished
    assert said.count("TensorBoard failed ([Errno 28] No space left on device); training continues without it") == 1
    assert said.count("the display failed (division by zero); training continues without it") == 1
    assert len(seen) == 1


def test_a_lack_of_memory_names_the_options_that_help(place, tmp_path, capsys, monkeypatch):
    def fails(self, batch):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")

    monkeypatch.setattr(ParallelStrategy, "__call__", fails)
    assert run(["train", str(place / "text.txt"), "-o", str(tmp_path / "run"), "--steps", "5", *SMALL]) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("lm: ")]
    assert "4 x 16 tokens in one pass" in line
    assert line.endswith("(--micro-batch-size, --checkpoint-activations)")
