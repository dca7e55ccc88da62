"""Several processes train as one does: the same losses, the same weights, whatever they share."""

import contextlib
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
import torch

from lm.checkpoint import load_tensors
from lm.run_folder import MODEL, find_checkpoint
from lm.training.loop import train
from lm.training.parallel import init_distributed
from tests.forked import Forked
from tests.lm.training.processes import CASES, halfway, in_processes, trained, write_texts
from tests.lm.training.runs import resume_run
from tests.tolerances import approx
from tests.waiting import wait_until

QUICK = ("gpt", "pairs", "few rows", "adapters", "muon sharded")
ALL = tuple(CASES)
DROPPING = {"stopped", "unstopped"}


def entries(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def losses(run: Path) -> list[float]:
    """The losses of steps and of evaluations, and what else is a number in the metrics."""
    return [
        value
        for entry in entries(run)
        for name, value in entry.items()
        if isinstance(value, float) and name != "validation_bleu"
    ]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_tensors(find_checkpoint(run, which="last") / MODEL)


def same(run: Path, other: Path) -> None:
    """That two runs learned the same, up to the order in which they add."""
    assert losses(run) == approx(losses(other), terms=64, depth=300)
    # Adam divides gradients by their own size, so that rounding of small ones is a part of a whole step.
    for name, value in weights(other).items():
        assert torch.allclose(weights(run)[name], value, rtol=1e-4, atol=1e-4), name


def sums(run: Path) -> dict[str, str]:
    return json.loads((find_checkpoint(run, which="last") / "manifest.json").read_text())["sha256"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    write_texts(folder)
    return folder


@pytest.fixture(scope="module")
def alone(texts, tmp_path_factory):
    """The run of a case that one process trains, trained when it is first asked for."""
    out = tmp_path_factory.mktemp("alone")

    def run(name: str) -> Path:
        if not (out / name).exists():
            trained(name, texts, out)
        return out / name

    return run


@pytest.fixture(scope="module")
def by_two(texts, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("two")
    in_processes(2, texts, out, ("stopped", "unstopped", "muon sharded"))
    return out


@pytest.mark.medium
def test_two_processes_train_as_one_does(texts, alone, tmp_path):
    in_processes(2, texts, tmp_path, QUICK)
    for name in QUICK:
        same(tmp_path / name, alone(name.removesuffix(" sharded")))


def test_what_two_save_they_continue_with_byte_for_byte(by_two):
    stopped, unstopped = sums(by_two / "stopped"), sums(by_two / "unstopped")
    assert stopped["model.safetensors"] == unstopped["model.safetensors"]
    assert stopped["optimizer.safetensors"] == unstopped["optimizer.safetensors"]
    assert entries(by_two / "stopped") == entries(by_two / "unstopped")


def test_one_continues_with_what_two_have_saved(by_two, tmp_path):
    for _ in train(resume_run(halfway(by_two / "muon sharded", tmp_path / "run"))):
        pass
    same(tmp_path / "run", by_two / "muon sharded")


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3, 4])
def test_any_number_of_processes_trains_any_model_as_one_does(size, texts, alone, tmp_path):
    in_processes(size, texts, tmp_path, ALL)
    for name in ALL:
        if name.removesuffix(" sharded") not in DROPPING:
            same(tmp_path / name, alone(name.removesuffix(" sharded")))
    for held in ("", " sharded"):
        stopped, unstopped = tmp_path / f"stopped{held}", tmp_path / f"unstopped{held}"
        assert entries(stopped) == entries(unstopped)
        for file in ("model.safetensors", "optimizer.safetensors"):
            assert sums(stopped)[file] == sums(unstopped)[file]


def wait_for_the_first(joined: str) -> None:
    """Join the group, and wait for rank 0, which says nothing."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with init_distributed() as world:
        Path(joined).touch()
        if world.rank == 0:
            time.sleep(1000)
        world.broadcast(None)


@pytest.mark.medium
@pytest.mark.parametrize("number", [1, 2])
def test_a_signal_ends_a_process_that_waits(number, tmp_path):
    """For others to join, where there is one; or for the first to tell it something."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    with contextlib.ExitStack() as stack:
        for rank in range(number):
            waiting = Forked(wait_for_the_first, tmp_path / str(rank), env=os.environ | group | {"RANK": str(rank)})
            stack.enter_context(waiting)
        wait_until(lambda: _answers(port) if number == 1 else (tmp_path / "1").exists())
        time.sleep(0.5)  # so that it waits already; a signal that comes before ends it too
        waiting.terminate()
        assert waiting.wait() in (-signal.SIGTERM, 128 + signal.SIGTERM)


def _answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
