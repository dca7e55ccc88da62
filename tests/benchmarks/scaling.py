"""What several processes cost and save: speed, memory, and what a signal or a killed process leaves behind.

python -m tests.benchmarks.scaling speed      # tokens/s of 2 processes of 1 thread and of 1 process of 2
python -m tests.benchmarks.scaling memory     # bytes of tensors in each of 1 and 2 processes, and as computed
python -m tests.benchmarks.scaling moments 20 1  # SIGTERM to the launcher, SIGKILL of a process, 20 times each; seed 1
"""

import dataclasses
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from lm.config.data import DataConfig
from lm.config.hardware import DistributionConfig
from lm.config.presets import build_run_config
from lm.config.run_config import RunConfig
from lm.config.tokenizer import TokenizerConfig
from lm.corpus.prepare_corpus import prepare_corpus
from lm.corpus.text_corpus import load_or_train_tokenizer, scan_corpus
from lm.distributed.launcher import launch
from lm.distributed.process_group import init_distributed
from lm.distributed.strategy import DDPStrategy
from lm.distributed.world import World
from lm.hardware import Hardware, peak_memory
from lm.run_folder import find_checkpoint, load_state, verify_checkpoint
from lm.text.text_files import find_text_files
from lm.training.events import Event
from lm.training.loop import train
from lm.training.planning.memory import estimate_memory
from lm.training.run import Run
from lm.training.startup import join_run, resume_run, start_run
from lm.training.training_corpus import TrainingCorpus

STORIES = Path("corpora/stories/train.txt")
SHAPES = {
    "12M": ("tiny", {"d_model": 384, "n_layers": 6, "n_heads": 6, "context_length": 256}, 16),
    "gpt2": ("gpt2", {"context_length": 64}, 4),
}
LIMIT = 30.0
SETTINGS = [
    "--preset", "tiny", "--steps", "40", "--evaluate-every", "20", "--checkpoint-every", "5", "--dropout", "0",
    "--dtype", "float32", "--optimizer", "adamw", "--learning-rate", "1e-3", "--processes", "2",
]  # fmt: skip


def config_of(shape: str, *, shard: bool, micro: int | None = None) -> RunConfig:
    preset, model, rows = SHAPES[shape]
    training = {"steps": 1000, "batch_size": rows, "micro_batch_size": micro, "evaluate_every": 0, "optimizer": "adamw"}
    found = build_run_config(preset, {"model": model,
                             "training": training, "hardware": {"dtype": "float32"}})  # fmt: skip
    return dataclasses.replace(found, distribution=DistributionConfig(shard=shard))


def opened(world: World, folder: Path, config: RunConfig, threads: int) -> Run:
    """A run on the stories, as spelled in bytes, with as many spare tokens as make the vocabulary of its preset."""
    if not world.is_main:
        return join_run(world)
    surveyed = scan_corpus(find_text_files([str(STORIES)]), DataConfig())
    tokenizer = load_or_train_tokenizer(surveyed, TokenizerConfig(kind="byte"))
    corpus = TrainingCorpus(
        prepare_corpus(surveyed, tokenizer).folder,
        tokenizer,
        spare_tokens=config.model.vocab_size - tokenizer.vocab_size,
    )
    from lm.training import startup

    startup.select_training_hardware = lambda *_: Hardware("cpu", "float32", threads, "float32")
    return start_run(folder, config, corpus, world=world)


def in_one_of_them(folder: Path, shape: str, threads: int, *, shard: bool, micro: int, steps: int) -> None:
    """Train some steps and write down what they took here."""
    torch.set_num_threads(threads)
    base = peak_memory()
    with init_distributed() as world:
        run = opened(world, folder / "run", config_of(shape, shard=shard, micro=micro or None), threads)
        events = train(run)
        next(events)
        began, worked, walls = time.perf_counter(), time.process_time(), []
        for _ in range(steps):
            before = time.perf_counter()
            tokens = next(events).tokens
            walls.append(time.perf_counter() - before)
        found = {
            "tokens": tokens, "wall": statistics.median(walls), "all": (time.perf_counter() - began) / steps,
            "cpu": (time.process_time() - worked) / steps, "peak": peak_memory() - base,
            "held": held_in_a_step(run, events),
        }  # fmt: skip
        (folder / f"{world.rank}.json").write_text(json.dumps(found))


def held_in_a_step(run: Run, events: Iterator[Event]) -> int:
    """The most bytes of tensors at a time: weights and moments, and what the next step allocates on top of them."""
    (optimizer,) = run.optimizers
    lasting = [each for p in run.model.parameters() for each in (p, *optimizer.state[p].values())]
    if isinstance(run.strategy, DDPStrategy):
        lasting += run.model.parameters()  # the buckets of their gradients, which stay
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        next(events)
    noted = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = (event.nbytes() for event in sorted(noted, key=lambda event: event.start_ns()))
    return sum(getattr(t, "_local_tensor", t).nbytes for t in lasting) + max(itertools.accumulate(changes))


def measured(size: int, shape: str, threads: int, *, shard: bool = False, micro: int = 0, steps: int = 3) -> list[dict]:
    with tempfile.TemporaryDirectory() as folder:
        numbers = map(str, (threads, int(shard), micro, steps))
        arguments = ["tests.benchmarks.scaling", "one", folder, shape, *numbers]
        if code := launch(["-m", *arguments], processes=size, start_time=time.monotonic()).code:
            raise SystemExit(f"{' '.join(arguments)}: exit code {code}")
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(size)]


def speed(rounds: int) -> None:
    for _ in range(rounds):
        (one,), two = measured(1, "12M", 2), measured(2, "12M", 1)
        cpu = sum(each["cpu"] for each in two)
        for name, of, seconds in (
            ("1 process of 2 threads", one, one["cpu"]),
            ("2 processes of 1 thread", two[0], cpu),
        ):
            print(f"{name}: {of['tokens'] / of['wall']:.0f} tokens/s, {seconds:.2f} s of processor a step")
        print(
            f"ratio {one['wall'] / two[0]['wall']:.3f} by the clock, {one['cpu'] / cpu:.3f} by the processor",
            flush=True,
        )


def memory() -> None:
    cases = [(1, False, 1), (2, False, 1), (2, True, 1), (2, True, 2)]
    for shape, (size, shard, turns) in itertools.product(SHAPES, cases):
        micro = SHAPES[shape][2] // size // turns
        each = measured(size, shape, 1, shard=shard, micro=micro, steps=1)
        is_held, peak = (max(one[name] for one in each) / 1e6 for name in ("held", "peak"))
        expected = (
            estimate_memory(config_of(shape, shard=shard, micro=micro), processes=size, dtype="float32").total / 1e6
        )
        print(
            f"{shape}, {size} processes, shard {shard}, {turns} turns: {is_held:.0f} MB of tensors at most, "
            f"{expected:.0f} MB expected; the process grew by {peak:.0f} MB",
            flush=True,
        )


def moments(number: int, seed: int) -> None:
    """Stop or kill at moments that a seed chooses; then continue alone to the end."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        expected = None
        for what in [None, *[signal.SIGTERM, signal.SIGKILL] * number]:
            run = folder / "run"
            subprocess.run(["rm", "-rf", str(run)], check=True)
            command = [sys.executable, "-m", "cli", "train", str(STORIES), "-o", str(run), *SETTINGS]
            process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
            if what is None:
                process.communicate()
                expected = losses(run)
                continue
            until = chance.uniform(6, 38)
            while process.poll() is None and steps_of(run) < until:
                time.sleep(0.05)
            children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)
            pids = sorted(map(int, children.stdout.split()))
            began = time.monotonic()
            os.kill(process.pid if what == signal.SIGTERM else chance.choice(pids[:2]), what)
            process.communicate()
            seconds, code = time.monotonic() - began, process.returncode
            saved = find_checkpoint(run, which="last")
            verify_checkpoint(saved)
            at = load_state(saved).step
            for _ in () if at == 40 else train(resume_run(run)):
                pass
            off = max(abs(a / b - 1) for a, b in zip(losses(run), expected, strict=True))
            wrong = seconds > LIMIT or code == 0 or off > 1e-5
            found = f"code {code} after {seconds:.1f} s, saved step {at}, off by {off:.1e}{'  WRONG' * wrong}"
            print(f"{what.name} at step {int(until)}: {found}", flush=True)


def steps_of(run: Path) -> int:
    path = run / "metrics.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def losses(run: Path) -> list[float]:
    entries = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [entry["loss"] for entry in entries if "loss" in entry]


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["one", folder, shape, threads, shard, micro, steps]:
            in_one_of_them(Path(folder), shape, int(threads), shard=shard == "1", micro=int(micro), steps=int(steps))
        case ["speed", *rounds]:
            speed(int(rounds[0]) if rounds else 3)
        case ["memory"]:
            memory()
        case ["moments", number, seed]:
            moments(int(number), int(seed))
