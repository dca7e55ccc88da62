"""`lm serve` under load, beside `lm generate` and llama.cpp's server: throughput, latency, start and idling.

    python -m tests.benchmarks.serving [--rounds 3] [--streams 32] [--tokens 200] [--dtype int8] [--threads 1]
                                       [--llama-server PATH]

The model has random weights and 12M parameters. In each round all systems decode the same prompts once, alternating;
the table has medians over rounds, and CPU time beside wall time for machines that do other work. llama.cpp's server
takes part if it is installed or its path is given, with the exported model in Q8_0 (needs the package gguf).

Tokens that are no text by themselves are banned: servers withhold them until the character is complete, and the time
between two events would be that of several tokens. The client is one thread that notes when bytes arrive and parses
them at the end, so that it takes no time from the servers.

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
import selectors
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lm.checkpoint import LoadedModel, save_checkpoint
from lm.config.inference import SamplingConfig
from lm.config.presets import build_run_config
from lm.config.run_config import HardwareConfig, RunConfig
from lm.decoding.generator import Generator
from lm.engine import load_for_decoding, plan_engines
from lm.model import build_model
from lm.run_folder import TrainingState
from lm.text.text_file import Prompt
from lm.tokenizer import Tokenizer
from tests.cli.small_runs import make_tokenizer
from tests.lm.serving.conftest import Server, serving

Body = dict[str, Any]
_IDLE_SECONDS = 10


@dataclass
class Load:
    """What one system took for all streams of a round.

    Attributes:
        wall: seconds.
        cpu: seconds of CPU time of its process.
        first: seconds from a request to its first token, of all streams.
        gaps: seconds between two tokens of a stream, of all streams.
        texts: by stream.
    """

    wall: float
    cpu: float
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def make_large_run(folder: Path) -> Path:
    """Write a run of 12M parameters in the shape of GPT-2, with random weights."""
    tokenizer = make_tokenizer("bpe")
    shape = {"n_layers": 7, "d_model": 384, "n_heads": 6, "context_length": 512, "vocab_size": tokenizer.vocab_size}
    config = build_run_config("gpt2", {"model": shape})
    save_checkpoint(
        folder, config=RunConfig(model=config.model), tokenizer=tokenizer, model=build_model(config.model).state_dict(),
        state=TrainingState(), is_best=True,
    )  # fmt: skip
    return folder


def make_bodies(tokenizer: Tokenizer, streams: int, tokens: int) -> list[Body]:
    """Return requests with different prompts and seeds, whose tokens are all text by themselves."""
    banned = (
        number
        for number in range(tokenizer.vocab_size)
        if tokenizer.decode([number]) in ("", "\N{REPLACEMENT CHARACTER}")
    )
    biases = {str(number): -100 for number in banned}
    return [
        {"prompt": f"The owl saw the fox {'by the mill ' * (number % 5)}", "seed": number, "max_tokens": tokens,
         "temperature": 1.0, "ignore_eos": True, "stream": True, "logit_bias": biases}
        for number in range(streams)
    ]  # fmt: skip


def stream_all(port: int, pid: int, bodies: Sequence[Body]) -> Load:
    """Send all requests of `/v1/completions` at once to a server."""
    began, cpu = time.perf_counter(), cpu_seconds(pid)
    arrived = _receive_all([_open(port, body) for body in bodies])
    wall, cpu = time.perf_counter() - began, cpu_seconds(pid) - cpu
    load = Load(wall, cpu)
    for parts in arrived:
        text, times = _parse(parts)
        load.texts.append(text)
        load.first.append(times[0] - began)
        load.gaps += [later - earlier for earlier, later in itertools.pairwise(times)]
    return load


def _receive_all(connections: Sequence[socket.socket]) -> list[list[tuple[float, bytes]]]:
    """Receive until all connections are closed; return what arrived on each, and when."""
    arrived: list[list[tuple[float, bytes]]] = [[] for _ in connections]
    with selectors.DefaultSelector() as selector:
        for connection, parts in zip(connections, arrived, strict=True):
            selector.register(connection, selectors.EVENT_READ, (connection, parts))
        while selector.get_map():
            for key, _ in selector.select():
                connection, parts = key.data
                part = connection.recv(1 << 16)
                if part:
                    parts.append((time.perf_counter(), part))
                else:
                    selector.unregister(connection)
                    connection.close()
    return arrived


def _parse(parts: Sequence[tuple[float, bytes]]) -> tuple[str, list[float]]:
    """Return the text of a stream, and when each event with text came."""
    text, times, line = "", list[float](), b""
    for arrived, part in parts:
        *lines, line = (line + part).split(b"\n")
        for each in lines:
            if each.startswith(b"data: {"):
                event = json.loads(each[6:])
                assert "choices" in event, event
                new = "".join(choice["text"] for choice in event["choices"])
                text += new
                times += [arrived] if new else []
    return text, times


def _open(port: int, body: Body) -> socket.socket:
    content = json.dumps(body).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(head % len(content) + content)
    return connection


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Alone:
    """What `lm generate` computes of the same requests."""

    def __init__(self, loaded: LoadedModel, bodies: Sequence[Body]) -> None:
        self.loaded, self.bodies = loaded, bodies
        biases = tuple(f"{token}={bias}" for token, bias in bodies[0]["logit_bias"].items())
        self.config = SamplingConfig(
            max_tokens=bodies[0]["max_tokens"], temperature=1.0, ignore_eos=True, logit_bias=biases
        )

    def batched(self, max_tokens: int | None = None) -> Load:
        """Continue all prompts as `lm generate --prompts` does; `max_tokens` are those of the requests."""
        config = self.config if max_tokens is None else self.config.replace(max_tokens=max_tokens)
        generator = Generator(self.loaded.model, self.loaded.tokenizer, config, batch_size=len(self.bodies))
        prompts = [Prompt(place, body["prompt"], "", seed=body["seed"]) for place, body in enumerate(self.bodies)]
        began, cpu = time.perf_counter(), time.process_time()
        texts = {prompt.number: samples[0].text for prompt, samples in generator.continue_prompts(prompts)}
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
        return Load(wall, cpu, texts=[texts[number] for number in range(len(self.bodies))])

    def differing(self, texts: Sequence[str], expected: Sequence[str]) -> list[int]:
        """Return the streams that equal neither those of one batch nor, as rounding depends on rows, the run alone."""
        return [number for number, text in enumerate(texts) if text != expected[number] and text != self._one(number)]

    def _one(self, number: int) -> str:
        settings = self.config.replace(seed=self.bodies[number]["seed"])
        (sample,) = Generator(self.loaded.model, self.loaded.tokenizer, settings).samples(self.bodies[number]["prompt"])
        return sample.text


def lm_server(run: Path, dtype: str, threads: int, *options: object) -> contextlib.AbstractContextManager[Server]:
    """Start `lm serve`, in a process that has to import everything."""
    arguments = map(str, ("serve", run, "--port", 0, "--dtype", dtype, "--threads", threads, *options))
    command = [sys.executable, "-m", "cli", *arguments]
    return serving(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))


@contextlib.contextmanager
def llama_server(program: str, file: Path, *, streams: int, threads: int) -> Iterator[tuple[int, int]]:
    """Start llama.cpp's server with a place for each stream; yield its port and process ID."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [program, "-m", str(file), "--port", str(port), "-t", str(threads), "-tb", str(threads),
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
    options = "--no-echo", "--max-tokens", "1", "--set", "sampling.token_healing=false", "--seed", "1", "--dtype", dtype
    command = [sys.executable, "-m", "cli", "generate", str(run), "The owl", *options, "--threads", str(threads)]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        return time.perf_counter() - began, cpu_seconds(process.pid)


def first_token_of_serve(run: Path, dtype: str, threads: int) -> tuple[float, float]:
    """Return wall and CPU seconds from the start of `lm serve` to the first token of a request."""
    began = time.perf_counter()
    with lm_server(run, dtype, threads) as server:
        body = {"prompt": "The owl", "max_tokens": 1, "token_healing": False, "seed": 1, "stream": True}
        _receive_all([_open(server.port, body)])
        return time.perf_counter() - began, cpu_seconds(server.process.pid)


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="int8", help="of lm's matrices; llama.cpp's are Q8_0 [default: int8]")
    parser.add_argument("--llama-server", metavar="PATH", default=shutil.which("llama-server"))
    given = parser.parse_args()
    os.environ["PYTHONDONTWRITEBYTECODE"] = ""  # else each start would compile lm again
    subprocess.run([sys.executable, "-m", "cli", "compile"], check=True)  # what was compiled before is loaded
    with tempfile.TemporaryDirectory(prefix="lm-bench-") as folder:
        sys.exit(_measure(Path(folder), given))


def _measure(folder: Path, given: argparse.Namespace) -> bool:
    """Measure all; return whether a stream was wrong."""
    run = make_large_run(folder / "run")
    loaded = load_for_decoding(run, HardwareConfig(dtype=given.dtype, threads=given.threads))
    bodies = make_bodies(loaded.tokenizer, given.streams, given.tokens)
    alone, rounds, prefills = Alone(loaded, bodies), list[dict[str, Load]](), list[float]()
    with contextlib.ExitStack() as running:
        room = given.streams + 1  # the slow client takes no place from the others
        server = running.enter_context(lm_server(run, given.dtype, given.threads, "--batch-size", room))
        systems: dict[str, Callable[[], Load]] = {
            "lm generate --prompts": alone.batched,
            "lm serve": lambda: stream_all(server.port, server.process.pid, bodies),
        }

        def beside_slow_client() -> Load:
            with _open(server.port, bodies[0] | {"logprobs": 20}):
                return stream_all(server.port, server.process.pid, bodies)

        systems["lm serve, slow client"] = beside_slow_client
        if given.llama_server:
            from lm.api import export

            export(run, folder / "model.gguf", "gguf", type="q8_0")
            port, pid = running.enter_context(
                llama_server(given.llama_server, folder / "model.gguf", streams=given.streams, threads=given.threads)
            )
            plain = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "cache_prompt": False}
            systems["llama-server"] = lambda: stream_all(port, pid, [body | plain for body in bodies])
        for system in systems.values():  # a first round, which allocates
            system()
        for number in range(given.rounds):
            print(f"round {number + 1} of {given.rounds}", file=sys.stderr, flush=True)
            prefills.append(alone.batched(1).wall)
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
    steps = [each["lm generate --prompts"].wall - prefill for each, prefill in zip(rounds, prefills, strict=True)]
    print(f"Engine of lm: {plan_engines(loaded.model)}\n")
    _print_tables(given, rounds, statistics.median(steps) / (given.tokens - 1), starts, idle, len(differing))
    return bool(differing)


def _print_tables(
    given: argparse.Namespace,
    rounds: Sequence[dict[str, Load]],
    step: float,
    starts: Sequence[tuple[tuple[float, float], tuple[float, float]]],
    idle: float,
    differing: int,
) -> None:
    total, base = given.streams * given.tokens, "lm generate --prompts"
    print(f"{given.streams} streams × {given.tokens} tokens, {given.dtype}, {given.threads} thread(s), medians of "
          f"{given.rounds} alternating rounds.\n")  # fmt: skip
    print("| system | tokens/s | relative to `lm generate --prompts` | in CPU time | first token, p50, p95 "
          "| between tokens, p50, p95 | p95 in steps |")  # fmt: skip
    print("|-|-|-|-|-|-|-|")
    for name in rounds[0]:
        wall = statistics.median(each[name].wall for each in rounds)
        ratio = statistics.median(each[base].wall / each[name].wall for each in rounds)
        in_cpu = statistics.median(each[base].cpu / each[name].cpu for each in rounds)
        print(f"| {name} | {total / wall:.0f} | {ratio:.2f} | {in_cpu:.2f} ", end="")
        if name == base:
            print(f"| | {1000 * step:.1f} ms a step | 1 |")
            continue
        first, gaps = (sorted(itertools.chain.from_iterable(lists)) for lists in (
            (each[name].first for each in rounds), (each[name].gaps for each in rounds)
        ))  # fmt: skip
        early, late, median, p95 = (
            1000 * values[int(fraction * len(values))] for values in (first, gaps) for fraction in (0.5, 0.95)
        )
        print(f"| {early:.0f}, {late:.0f} ms | {median:.1f}, {p95:.1f} ms | {p95 / 1000 / step:.2f} |")
        if (events := len(first) + len(gaps)) < 0.95 * total * given.rounds:
            print(f"{name}: only {events} of {total * given.rounds} tokens came as events", file=sys.stderr)
    for place, name in enumerate(("wall", "CPU")):
        generate, serve = (statistics.median(each[side][place] for each in starts) for side in (0, 1))
        print(f"\n{name} time to the first token: lm generate {generate:.2f} s, lm serve {serve:.2f} s, ratio "
              f"{serve / generate:.2f}")  # fmt: skip
    print(f"\nCPU time of the idle server in {_IDLE_SECONDS} s: {idle:.2f} s")
    print(f"\nStreams that differ from their seeded run alone: {differing}")


if __name__ == "__main__":
    main()
