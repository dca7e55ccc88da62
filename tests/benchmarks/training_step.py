"""Optimizer steps of `lm train` against a plain loop over Hugging Face's GPT-2 of the same shape, alternating.

    python -m tests.benchmarks.training_step [0.8M 12.3M 124M] [--seconds 30] [--threads 2]

Both sides: the same batch size and context, bfloat16 autocast, fused AdamW, clipping, no dropout. Each side is a
process of its own, so that memory and its allocator are those that its users get, and they take turns; a third one is
Hugging Face with an allocator that keeps freed memory, as ours does. MFU is as in `lm bench`, against products of
1,024³ in bfloat16 that our process times before each step. Memory is the most that a process ever held.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial
from multiprocessing.connection import Connection

import numpy as np
import torch

from lm.benchmark import hugging_face
from lm.config.presets import build_run_config
from lm.config.run import RunConfig
from lm.data.batch import Batch
from lm.hardware import Hardware, time_work
from lm.model.cost import training_flops
from lm.model.layers import linear
from lm.training.step_timing import random_data_run, time_interleaved, training_step_timer
from tests.benchmarks.sides import KEPT_MEMORY, Side, serve

SHAPES: dict[str, tuple[int, dict[str, int]]] = {
    "0.8M": (12, {"n_layers": 4, "d_model": 128, "n_heads": 4, "context_length": 64, "vocab_size": 65}),
    "12.3M": (8, {"n_layers": 6, "d_model": 384, "n_heads": 6, "context_length": 256, "vocab_size": 4096}),
    "124M": (1, {"n_layers": 12, "d_model": 768, "n_heads": 12, "context_length": 512, "vocab_size": 50257}),
}
PRODUCT, PRODUCTS_A_TURN = 1024, 20
WARM_UP = 5


def configuration(shape: str, threads: int) -> RunConfig:
    """GPT-2's block in a shape, trained by AdamW in bfloat16."""
    model = {**SHAPES[shape][1], "dropout": 0.0}
    return build_run_config("gpt2", {"model": model, "hardware": {"dtype": "bfloat16", "threads": threads}})


def ours(connection: Connection, shape: str, threads: int) -> None:
    """Our side: steps, and the products that say what the machine can do."""
    matrix = torch.ones(PRODUCT, PRODUCT, dtype=torch.bfloat16)

    @torch.no_grad()
    def product() -> float:
        return min(time_work(lambda: linear(matrix, matrix), run.hardware) for _ in range(PRODUCTS_A_TURN))

    with random_data_run(configuration(shape, threads), rows=SHAPES[shape][0]) as run:
        serve(connection, {"step": training_step_timer(run), "product": product})


def theirs(connection: Connection, shape: str, threads: int) -> None:
    """Hugging Face's side, with nothing of ours but the loop."""
    torch.set_num_threads(threads)
    config, hardware = configuration(shape, threads), Hardware("cpu", "bfloat16", threads)
    size = (SHAPES[shape][0], config.model.context_length)
    ids = np.random.default_rng(0).integers(config.model.vocab_size, size=size)
    serve(connection, {"step": hugging_face.plain_training_timer(config, hardware, lambda: Batch(ids, ids))})


def compare(shape: str, *, seconds: float, threads: int) -> None:
    """Let the sides take turns at a shape, and print what came of it."""
    sides = {
        "lm": Side(ours, shape, threads, environment={}),
        "Hugging Face": Side(theirs, shape, threads, environment={}),
        "Hugging Face, memory kept": Side(theirs, shape, threads, environment=KEPT_MEMORY),
    }
    turns = [partial(sides["lm"].ask, "product"), *(partial(side.ask, "step") for side in sides.values())]
    for _ in range(WARM_UP):
        time_interleaved(turns, seconds=0)
    rounds = time_interleaved(turns, seconds=seconds)
    config, (rows, _) = configuration(shape, threads), SHAPES[shape]
    length = config.model.context_length
    flops = training_flops(config.model, rows=rows, length=length)
    products = [2 * PRODUCT**3 / each[0] for each in rounds]
    print(f"{shape}: {rows} x {length} tokens, {threads} threads, torch {torch.__version__}, {len(rounds)} rounds;")
    print(f"  products of {PRODUCT}³ in bfloat16: {statistics.median(products) / 1e9:.0f} GFLOP/s")
    for index, (name, side) in enumerate(sides.items(), start=1):
        milliseconds = 1000 * statistics.median(each[index] for each in rounds)
        mfu = statistics.median(flops / each[index] / rate for each, rate in zip(rounds, products, strict=True))
        ratio = statistics.median(each[index] / each[1] for each in rounds)
        print(
            f"  {name:25} {milliseconds:7.1f} ms a step, MFU {mfu:5.1%}, x {ratio:.2f}, {side.ask('peak') >> 20:5} MiB"
        )
        side.end()


def main() -> None:
    """Time each shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=list(SHAPES), help=" ".join(SHAPES))
    parser.add_argument("--seconds", type=float, default=30.0, help="for each side")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    for shape in given.shapes:
        compare(shape, seconds=given.seconds, threads=given.threads)


if __name__ == "__main__":
    main()
