"""`lm serve` under load, beside `lm generate` and llama.cpp's server: throughput, latency, start and idling.

    python -m tests.benchmarks.serving [--rounds 3] [--streams 32] [--tokens 200] [--dtype int8] [--threads 1]

The model has random weights and 12M parameters. In each round all systems decode the same prompts once, alternating;
the table has medians over rounds, and CPU time beside wall time for machines that do other work. `llama-server` takes
part if it is installed (and the package gguf), with the exported model in Q8_0.

lm generate --prompts   continuous batching without a server, in one process
lm serve                as many concurrent streams as prompts
lm serve, slow client   the same beside one more client that asks for a stream and reads nothing
llama-server            the same streams

Prints Markdown to stdout, progress to stderr. Exits with 1 if a stream differs from its seeded run alone.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lm.checkpoint import LoadedModel, save_checkpoint
from lm.config.decoding import SamplingConfig
from lm.config.hardware import HardwareConfig
from lm.config.presets import build_run_config
from lm.config.run import RunConfig
from lm.decoding.generator import Generator
from lm.engine.fastest_dtype import load_for_decoding
from lm.model.transformer import build_model
from lm.run_folder import TrainingState
from lm.text.prompts import Prompt
from tests.cli.small_runs import make_tokenizer
from tests.lm.serving.conftest import served

Body = dict[str, Any]
_IDLE_SECONDS = 10


@dataclass
class Load:
    """What one system took for all streams of a round.

    Attributes:
        wall: seconds.
        cpu: seconds of CPU time of its process.
        gaps: seconds between two tokens of a stream, of all streams.
        texts: by stream.
    """

    wall: float
    cpu: float
    gaps: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def make_large_run(folder: Path) -> Path:
    """Write a run of 12M parameters in the shape of GPT-2, with random weights."""
    tokenizer = make_tokenizer("bpe")
    shape = {"n_layers": 7, "d_model": 384, "n_heads": 6, "context_length": 512, "vocab_size": tokenizer.vocab_size}
    config = build_run_config("gpt2", {"model": shape})
    save_checkpoint(
        folder, config=RunConfig(model=config.model), tokenizer=tokenizer, model=build_model(config.model).state_dict(),
        optimizer={}, state=TrainingState(), is_best=True,
    )  # fmt: skip
    return folder


def make_bodies(streams: int, tokens: int) -> list[Body]:
    """Return requests with different prompts and seeds."""
    return [
        {"prompt": f"The owl saw the fox {'by the mill ' * (number % 5)}", "seed": number, "max_tokens": tokens,
         "temperature": 1.0, "ignore_eos": True, "stream": True}
        for number in range(streams)
    ]  # fmt: skip


def stream(port: int, body: Body) -> tuple[str, list[float]]:
    """Send a request of `/v1/completions`; return its text and when each part of it came."""
    text, times = "", []
    with _open(port, body) as connection:
        for line in connection.makefile("rb"):
            if line.startswith(b"data: {"):
                times.append(time.perf_counter())
                text += "".join(choice["text"] for choice in json.loads(line[6:])["choices"])
    return text, times


def _open(port: int, body: Body) -> socket.socket:
    content = json.dumps(body).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(head % len(content) + content)
    return connection


def stream_all(port: int, pid: int, bodies: Sequence[Body]) -> Load:
    """Send all requests at once to a server."""
    results: list[tuple[str, list[float]]] = [("", [])] * len(bodies)

    def work(number: int) -> None:
        results[number] = stream(port, bodies[number])

    threads = [threading.Thread(target=work, args=[number]) for number in range(len(bodies))]
    began, cpu = time.perf_counter(), cpu_seconds(pid)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gaps = [later - earlier for _, times in results for earlier, later in itertools.pairwise(times)]
    wall = time.perf_counter() - began
    return Load(wall, cpu_seconds(pid) - cpu, gaps, [text for text, _ in results])


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Alone:
    """What `lm generate` computes of the same requests."""

    def __init__(self, loaded: LoadedModel, bodies: Sequence[Body]) -> None:
        self.loaded, self.bodies = loaded, bodies
        self.config = SamplingConfig(max_tokens=bodies[0]["max_tokens"], temperature=1.0, ignore_eos=True)

    def batched(self) -> Load:
        """Continue all prompts as `lm generate --prompts` does."""
        generator = Generator(self.loaded.model, self.loaded.tokenizer, self.config, batch_size=len(self.bodies))
        prompts = [Prompt(place, body["prompt"], "", seed=body["seed"]) for place, body in enumerate(self.bodies)]
        began, cpu = time.perf_counter(), time.process_time()
        texts = {prompt.number: samples[0].text for prompt, samples in generator.continue_prompts(prompts)}
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
        return Load(wall, cpu, [], [texts[number] for number in range(len(self.bodies))])

    def differing(self, texts: Sequence[str], expected: Sequence[str]) -> list[int]:
        """Return the streams that equal neither those of one batch nor, as rounding depends on rows, the run alone."""
        return [number for number, text in enumerate(texts) if text != expected[number] and text != self._one(number)]

    def _one(self, number: int) -> str:
        settings = self.config.replace(seed=self.bodies[number]["seed"])
        (sample,) = Generator(self.loaded.model, self.loaded.tokenizer, settings).samples(self.bodies[number]["prompt"])
        return sample.text


@contextlib.contextmanager
def llama_server(file: Path, *, streams: int, threads: int) -> Iterator[tuple[int, int]]:
    """Start llama.cpp's server with a place for each stream; yield its port and process ID."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["llama-server", "-m", str(file), "--port", str(port), "-t", str(threads), "-tb", str(threads),
               "-np", str(streams), "-c", str(512 * streams), "--no-webui"]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health").close()
                break
            if process.poll() is not None:
                raise SystemExit(f"llama-server ended with {process.returncode}")
            time.sleep(0.1)
        yield port, process.pid
    finally:
        process.kill()
        process.wait()


def first_token_of_generate(run: Path, dtype: str, threads: int) -> tuple[float, float]:
    """Return wall and CPU seconds from the start of `lm generate` to its first token."""
    options = "--no-echo", "--max-tokens", "8", "--ignore-eos", "--no-token-healing", "--seed", "1", "--dtype", dtype
    command = [sys.executable, "-m", "cli", "generate", str(run), "The owl", *options, "--threads", str(threads)]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        return time.perf_counter() - began, cpu_seconds(process.pid)


def first_token_of_serve(run: Path, dtype: str, threads: int) -> tuple[float, float]:
    """Return wall and CPU seconds from the start of `lm serve` to the first token of a request."""
    began = time.perf_counter()
    with served(run, "--dtype", dtype, "--threads", threads) as server:
        body = {"prompt": "The owl", "max_tokens": 8, "ignore_eos": True, "token_healing": False, "stream": True}
        with _open(server.port, body) as connection:
            for line in connection.makefile("rb"):
                if line.startswith(b"data: {"):
                    break
        return time.perf_counter() - began, cpu_seconds(server.process.pid)


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="int8", help="of lm's matrices; llama.cpp's are Q8_0 [default: int8]")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lm-bench-") as folder:
        sys.exit(_measure(Path(folder), given))


def _measure(folder: Path, given: argparse.Namespace) -> bool:
    """Measure all; return whether a stream was wrong."""
    run, bodies = make_large_run(folder / "run"), make_bodies(given.streams, given.tokens)
    loaded = load_for_decoding(run, HardwareConfig(dtype=given.dtype, threads=given.threads))
    alone, rounds = Alone(loaded, bodies), list[dict[str, Load]]()
    with contextlib.ExitStack() as running:
        room = given.streams + 1  # the slow client takes no place from the others
        server = running.enter_context(
            served(run, "--dtype", given.dtype, "--threads", given.threads, "--batch-size", room)
        )
        systems: dict[str, Callable[[], Load]] = {
            "lm generate --prompts": alone.batched,
            "lm serve": lambda: stream_all(server.port, server.process.pid, bodies),
        }

        def beside_slow_client() -> Load:
            with _open(server.port, bodies[0] | {"logprobs": 20}):
                return stream_all(server.port, server.process.pid, bodies)

        systems["lm serve, slow client"] = beside_slow_client
        if shutil.which("llama-server") and find_spec("gguf"):
            from lm.interop.gguf.exporting import export_gguf

            export_gguf(run, folder / "model.gguf", number_type="q8_0")
            port, pid = running.enter_context(
                llama_server(folder / "model.gguf", streams=given.streams, threads=given.threads)
            )
            systems["llama-server"] = lambda: stream_all(port, pid, bodies)
        stream(server.port, bodies[0] | {"max_tokens": 2})
        for number in range(given.rounds):
            print(f"round {number + 1} of {given.rounds}", file=sys.stderr, flush=True)
            rounds.append({name: system() for name, system in systems.items()})
        before = cpu_seconds(server.process.pid)
        time.sleep(_IDLE_SECONDS)
        idle = cpu_seconds(server.process.pid) - before
    starts = [
        (
            first_token_of_generate(run, given.dtype, given.threads),
            first_token_of_serve(run, given.dtype, given.threads),
        )
        for _ in range(given.rounds)
    ]
    expected = rounds[0]["lm generate --prompts"].texts
    differing = {number for each in rounds for number in alone.differing(each["lm serve"].texts, expected)}
    _print_tables(given, rounds, starts, idle, len(differing))
    return bool(differing)


def _print_tables(
    given: argparse.Namespace,
    rounds: Sequence[dict[str, Load]],
    starts: Sequence[tuple[tuple[float, float], tuple[float, float]]],
    idle: float,
    differing: int,
) -> None:
    total, base = given.streams * given.tokens, "lm generate --prompts"
    step = statistics.median(each[base].wall for each in rounds) / given.tokens
    print(f"{given.streams} streams × {given.tokens} tokens, {given.dtype}, {given.threads} thread(s), medians of "
          f"{given.rounds} alternating rounds.\n")  # fmt: skip
    print("| system | tokens/s | relative to `lm generate --prompts` | in CPU time | p95 between tokens | in steps |")
    print("|-|-|-|-|-|-|")
    for name in rounds[0]:
        wall = statistics.median(each[name].wall for each in rounds)
        ratio = statistics.median(each[base].wall / each[name].wall for each in rounds)
        in_cpu = statistics.median(each[base].cpu / each[name].cpu for each in rounds)
        gaps = sorted(itertools.chain.from_iterable(each[name].gaps for each in rounds))
        p95 = gaps[int(0.95 * len(gaps))] if gaps else step
        print(f"| {name} | {total / wall:.0f} | {ratio:.2f} | {in_cpu:.2f} | {1000 * p95:.1f} ms | {p95 / step:.2f} |")
    for place, name in enumerate(("wall", "CPU")):
        generate, serve = (statistics.median(each[side][place] for each in starts) for side in (0, 1))
        print(f"\n{name} time to the first token: lm generate {generate:.2f} s, lm serve {serve:.2f} s, ratio "
              f"{serve / generate:.2f}")  # fmt: skip
    print(f"\nCPU time of the idle server in {_IDLE_SECONDS} s: {idle:.2f} s")
    print(f"\nStreams that differ from their seeded run alone: {differing}")


if __name__ == "__main__":
    main()
