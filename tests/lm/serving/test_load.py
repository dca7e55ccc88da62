"""Many streams of a model of 12M parameters: no token is lost or mixed; prints what they cost."""

import itertools
import json
import socket
import statistics
import threading
import time

import pytest

from lm.config.decoding import SamplingConfig
from lm.config.hardware import HardwareConfig
from lm.decoding.generator import Generator
from lm.engine.fastest_dtype import load_for_decoding
from lm.text.prompts import Prompt
from tests.cli.small_runs import make_run
from tests.lm.serving.conftest import served

pytest.importorskip("uvicorn")
pytestmark = pytest.mark.slow

STREAMS, TOKENS = 32, 200


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(
        tmp_path_factory.mktemp("runs") / "large", d_model=384, n_layers=7, n_heads=6, context_length=512, init_std=0.05
    )


def stream(port: int, body: dict) -> tuple[str, list[float]]:
    """Send a request; return its text and when each part of it came."""
    content, text, times = json.dumps(body | {"stream": True}).encode(), "", []
    with socket.create_connection(("127.0.0.1", port)) as connection:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        connection.sendall(head % len(content) + content)
        for line in connection.makefile("rb"):
            if line.startswith(b"data: {"):
                times.append(time.perf_counter())
                text += "".join(choice["text"] for choice in json.loads(line[6:])["choices"])
    return text, times


def test_concurrent_streams_equal_their_runs_alone(run):
    bodies = [
        {"prompt": f"The owl saw the fox {'by the mill ' * (number % 5)}", "seed": number, "max_tokens": TOKENS,
         "temperature": 1.0, "ignore_eos": True}
        for number in range(STREAMS)
    ]  # fmt: skip
    loaded = load_for_decoding(run, HardwareConfig(threads=1))
    config = SamplingConfig(max_tokens=TOKENS, temperature=1.0, ignore_eos=True)
    generator = Generator(loaded.model, loaded.tokenizer, config, batch_size=STREAMS)
    prompts = [Prompt(number, body["prompt"], "", seed=body["seed"]) for number, body in enumerate(bodies)]
    began = time.perf_counter()
    expected = {prompt.number: samples[0].text for prompt, samples in generator.continue_prompts(prompts)}
    batched = time.perf_counter() - began
    with served(run) as server:
        stream(server.port, bodies[0] | {"max_tokens": 2})
        results: list[tuple[str, list[float]]] = [("", [])] * STREAMS

        def work(number: int) -> None:
            results[number] = stream(server.port, bodies[number])

        threads = [threading.Thread(target=work, args=[number]) for number in range(STREAMS)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        concurrent = time.perf_counter() - began
    gaps = sorted(later - earlier for _, times in results for earlier, later in itertools.pairwise(times))
    print(
        f"{STREAMS} x {TOKENS} tokens: lm generate --prompts {batched:.2f} s, lm serve {concurrent:.2f} s "
        f"(throughput {batched / concurrent:.2f}); step {1000 * batched / TOKENS:.1f} ms, between tokens median "
        f"{1000 * statistics.median(gaps):.1f} ms, p95 {1000 * gaps[int(0.95 * len(gaps))]:.1f} ms"
    )
    different = [number for number in range(STREAMS) if results[number][0] != expected[number]]
    for number in different:  # rounding depends on the number of rows; then a stream equals its run alone
        settings = config.replace(seed=bodies[number]["seed"])
        (sample,) = Generator(loaded.model, loaded.tokenizer, settings).samples(bodies[number]["prompt"])
        assert results[number][0] == sample.text
