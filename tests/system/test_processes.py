"""`lm train` in several processes: started, stopped, killed, and resumed."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.main import run
from lm.run_folder import find_checkpoint, load_state
from tests.system.conftest import SMALL
from tests.tolerances import approx
from tests.waiting import SECONDS, wait_for_steps

SETTINGS = ["--dtype", "float32", "--device", "cpu", *SMALL]


def started(*arguments: str, torchrun: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    launcher = ["-m", "torch.distributed.run", *torchrun, "-m", "cli"] if torchrun else ["-m", "cli"]
    command = [sys.executable, *launcher, "train", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """The exit code, standard output and standard error of a command that ends in time."""
    with process:
        try:
            out, err = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()  # which the launcher passes on
            raise
    return process.returncode, out, err


def losses(folder: Path) -> list[float]:
    entries = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [entry["loss"] for entry in entries if "loss" in entry]


def children(process: subprocess.Popen[str]) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)
    return [int(pid) for pid in found.stdout.split()]


def test_of_several_processes_one_says_what_is_wrong(place, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run(["train", str(place / "text.txt"), "--steps", "1", "--epochs", "2", "--source", "x"]) == 2
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_processes_train_as_one_does(place, tmp_path):
    arguments = [str(place / "text.txt"), *SETTINGS, "--steps", "30", "--dropout", "0"]
    assert ended(started(*arguments, "-o", str(tmp_path / "one")))[0] == 0
    code, out, err = ended(started(*arguments, "-o", str(tmp_path / "two"), "--processes", "2", "--json"))
    assert code == 0, err
    assert json.loads(out)["steps"] == 30
    assert err.count("done ") == err.count("plan ") == 1
    assert not re.search(r"\bwarning", err, re.IGNORECASE)
    assert losses(tmp_path / "two") == approx(losses(tmp_path / "one"), terms=64, depth=300)


@pytest.mark.slow
def test_two_agents_of_torchrun_train_as_one_process_does(place, tmp_path):
    arguments = [str(place / "text.txt"), *SETTINGS, "--steps", "30", "--dropout", "0"]
    assert ended(started(*arguments, "-o", str(tmp_path / "one")))[0] == 0
    meeting = ("--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:29517",
               "--rdzv-id", "1", "--local-addr", "127.0.0.1")  # fmt: skip
    agents = [started(*arguments, "-o", str(tmp_path / "two"), torchrun=meeting) for _ in range(2)]
    assert [code for code, _, _ in map(ended, agents)] == [0, 0]
    assert losses(tmp_path / "two") == approx(losses(tmp_path / "one"), terms=64, depth=300)


@pytest.mark.slow
@pytest.mark.parametrize("to", ["launcher", "rank"])
def test_a_signal_stops_all_after_the_same_step_with_one_checkpoint(to, place, tmp_path):
    folder = tmp_path / "run"
    process = started(str(place / "text.txt"), *SETTINGS, "--steps", "100000", "-o", str(folder), "--processes", "2",
                      "--evaluate-every", "0")  # fmt: skip
    wait_for_steps(folder, 5)
    os.kill(process.pid if to == "launcher" else max(children(process)), signal.SIGTERM)
    code, _, err = ended(process)
    assert code == 143, err
    assert err.count("stopped ") == 1
    (only,) = (folder / "checkpoints").iterdir()
    assert load_state(only).step == len(losses(folder))


@pytest.mark.slow
def test_stdin_is_read_by_the_processes(place, tmp_path):
    arguments = [*SETTINGS, "--steps", "3", "--evaluate-every", "0", "--processes", "2"]
    command = [sys.executable, "-m", "cli", "train", "-", "-o", str(tmp_path / "run"), *arguments]
    subprocess.run(command, check=True, input=(place / "text.txt").read_bytes(), timeout=SECONDS)
    assert load_state(find_checkpoint(tmp_path / "run")).step == 3


@pytest.mark.slow
def test_a_process_that_is_killed_ends_all_in_one_line(place, tmp_path):
    folder = tmp_path / "run"
    arguments = [*SETTINGS, "--processes", "2"]
    process = started(str(place / "text.txt"), *arguments, "--steps", "4000", "--set",
                          "training.checkpoint_every=5", "-o",
                      str(folder))  # fmt: skip
    wait_for_steps(folder, 12)
    os.kill(max(children(process)), signal.SIGKILL)
    code, _, err = ended(process)
    assert code == 128 + signal.SIGKILL
    assert err.count("lm: ") == 1
    assert "resume" in err.splitlines()[-1]
    assert load_state(find_checkpoint(folder, which="last")).step >= 10


@pytest.mark.slow
def test_torchrun_starts_a_killed_run_again_from_its_last_checkpoint(place, tmp_path):
    folder = tmp_path / "run"
    arguments = [
        str(place / "text.txt"), *SETTINGS, "--steps", "40", "--set", "training.checkpoint_every=5",
        "--evaluate-every", "0",
    ]  # fmt: skip
    process = started(*arguments, "-o", str(folder), torchrun=("--standalone", "--nproc-per-node", "2",
                      "--max-restarts", "1"))  # fmt: skip
    wait_for_steps(folder, 12)
    os.kill(max(children(process)), signal.SIGKILL)
    code, _, err = ended(process)
    assert code == 0, err
    assert err.count("resume  ") == 1
    assert len(losses(folder)) == 40
    assert ended(started(*arguments, "-o", str(tmp_path / "unbroken"), "--processes", "2"))[0] == 0
    assert losses(folder) == losses(tmp_path / "unbroken")
