"""Commands; as their peak memory would include that of the process that starts them, this module imports no torch."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from itertools import count
from pathlib import Path

from lm.training.run_log import load_curves
from tests.benchmarks.comparison import Workload
from tests.benchmarks.runs import lm
from tests.benchmarks.workloads.paths import model_path
from tests.benchmarks.workloads.timing import timer

NANOGPT_LOSS = 1.886
"""The validation loss at the end of nanoGPT's recipe, in nats/character."""
NANOGPT_FLAGS = ("--depth", "2", "--tokenizer", "char", "--context", "64", "--batch-size", "12", "--steps", "400",
                 "--evaluate-every", "20")  # fmt: skip


def python(folder: Path, threads: int, *, arguments: Sequence[str]) -> Workload:
    """Run Python with some arguments, from its start to its exit; "{folder}" and "{threads}" are replaced."""
    words = [word.replace("{folder}", str(folder)).replace("{threads}", str(threads)) for word in arguments]
    run = partial(
        subprocess.run, [sys.executable, *words], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return Workload(timer(run), runs_commands=True)


def llama_bench(folder: Path, threads: int, *, shape: str, decoded: int = 0, prompt: int = 0) -> Workload:
    """Decode after an empty prompt, or prefill, with llama.cpp's `llama-bench`."""
    command = [
        "llama-bench", "-m", str(model_path(folder, shape, "gguf-q8_0")), "-n", str(decoded), "-p", str(prompt),
        "-t", str(threads), "-r", "1", "-o", "json",
    ]  # fmt: skip

    def run() -> float:
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        (measured,) = json.loads(printed.stdout)
        return measured["samples_ns"][0] / 1e9

    return Workload(run, runs_commands=True)


def lm_train(
    folder: Path, threads: int, *, corpus: str, flags: tuple[str, ...] = NANOGPT_FLAGS, loss: float = NANOGPT_LOSS
) -> Workload:
    """Train with another seed each time; the seconds are those of training until the first evaluation at the loss."""
    seeds = count(1)

    def run() -> float:
        with tempfile.TemporaryDirectory() as place:
            options = ("--seed", str(next(seeds)), "--threads", str(threads), "-o", f"{place}/run")
            lm("train", corpus, *flags, *options)
            curves = load_curves(Path(place, "run"))
        losses = curves["validation_loss"]
        end = next((step for step, value in losses.items() if value <= loss), None)
        if end is None:
            raise RuntimeError(f"the loss ended at {[*losses.values()][-1]:.4f}, above {loss}")
        return sum(seconds for step, seconds in curves["seconds"].items() if step <= end)

    return Workload(run, runs_commands=True)
