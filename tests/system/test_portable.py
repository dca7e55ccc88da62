"""A short training with nothing said about the machine, as it continues whatever processor this is.

`make test-portable` runs it, and the tests of this folder, on a processor that is told to do less than it can.
"""

import json
import os
import subprocess
import sys

import pytest

from lm.hardware import MAX_THREADS, native_dtypes
from tests.system.test_commands import lm
from tests.tolerances import approx

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of the default preset in a process of its own, where the arithmetic is measured."""
    folder = tmp_path_factory.mktemp("portable")
    lines = (f"{number} and {number + 1} make {2 * number + 1}.\n" for number in range(3000))
    (folder / "text.txt").write_text("".join(lines))
    flags = ["--steps", "12", "--batch-size", "4", "--evaluate-every", "6", "-o", str(folder / "run")]
    done = lm("train", str(folder / "text.txt"), *flags)
    assert done.returncode == 0, done.stderr
    return folder / "run"


def test_it_learns_in_arithmetic_that_the_processor_is_not_far_slower_in(trained):
    config = json.loads((trained / "config.json").read_text())
    assert config["training"]["optimizer"] == "muon"
    assert config["plan"]["dtype"] in native_dtypes("cpu")
    assert config["plan"]["threads"] <= MAX_THREADS
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < losses[0] - 0.5


def test_its_perplexity_does_not_depend_on_the_processor(trained, tmp_path):
    """Nor on the number of threads: what it is elsewhere is computed here with the plainest kernels that torch has."""
    (tmp_path / "held.txt").write_text("7 and 8 make 15.\n" * 40)
    command = [sys.executable, "-m", "cli.main", "perplexity", str(trained), str(tmp_path / "held.txt"), "--json"]
    plain = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "OMP_NUM_THREADS": "1"}
    found = [_bits(command, {}), _bits(command, plain)]
    assert found[0] == approx(found[1], terms=256, depth=20)


def _bits(command: list[str], environment: dict[str, str]) -> float:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=900)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["total"]["bits_per_byte"]
