"""Scoring with overlapping windows: `lm perplexity` against the strided loop that Hugging Face documents.

    python -m tests.benchmarks.perplexity_throughput [--threads 1] [--rounds 3] [--windows 5] [--dtypes float32]

GPT-2 small with random weights, context 1024, stride 512, ids drawn by a seed. Each side is a process of its own, so
that its allocator is the one that its users get, and they take turns; a third one is Hugging Face with an allocator
that keeps freed memory, as ours does. Prints the median over rounds of the CPU time of each, of tokens
scored in one, and of how many times as long as ours it took, after a round that does not count; and the greatest
difference of the log-probability of any token in float32 that both predict from the same tokens (of the first token of
each later window the two see different ones).

Source of the loop: "Perplexity of fixed-length models" in the documentation of transformers.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection

import numpy as np
import torch
from torch import Tensor, nn

from lm.checkpoint import prepare_for_inference
from lm.config.evaluation import PerplexityConfig
from lm.config.hardware import HardwareConfig
from lm.config.model import ModelConfig
from lm.evaluation.scoring import score_document
from lm.hardware import select_inference_hardware
from lm.model.transformer import DecoderOnly, build_model
from tests.benchmarks.sides import KEPT_MEMORY, Side, serve
from tests.lm.model import hugging_face

CONTEXT, STRIDE, VOCABULARY = 1024, 512, 50_257


def build() -> tuple[DecoderOnly, nn.Module]:
    """124 million parameters on either side."""
    config = ModelConfig(
        vocab_size=VOCABULARY, context_length=CONTEXT, d_model=768, n_layers=12, n_heads=12, positions="learned",
        norm="layernorm", activation="gelu-tanh", bias=True,
    )  # fmt: skip
    ours = build_model(config)
    assert isinstance(ours, DecoderOnly)
    return ours.eval(), hugging_face.gpt2(ours).eval()


def documented_loop(model: nn.Module, ids: Tensor) -> float:
    """The mean of the losses of (1, length) ids, as the documentation has it."""
    total, count, previous_end = 0.0, 0, 0
    for begin in range(0, ids.shape[1], STRIDE):
        end = min(begin + CONTEXT, ids.shape[1])
        inputs = ids[:, begin:end]
        targets = inputs.clone()
        targets[:, : -(end - previous_end)] = -100
        with torch.no_grad():
            loss = model(inputs, labels=targets).loss
        scored = int((targets != -100).sum()) - 1
        total, count, previous_end = total + float(loss) * scored, count + scored, end
        if end == ids.shape[1]:
            break
    return total / count


def nats_of_theirs(model: nn.Module, ids: Tensor) -> np.ndarray:
    """The surprisal of ids[1:] in their windows; NaN for what ours predicts from other tokens."""
    nats = np.full(ids.shape[1] - 1, np.nan)
    for begin in range(0, ids.shape[1] - CONTEXT + 1, STRIDE):
        window = ids[0, begin : begin + CONTEXT]
        with torch.inference_mode():
            logprobs = model(window[None]).logits[0, :-1].log_softmax(-1)
        first = CONTEXT - STRIDE if begin else 0
        found = -logprobs.gather(1, window[1:, None])[first:, 0]
        nats[begin + first : begin + CONTEXT - 1] = found.numpy()
    return nats


def ours(model: DecoderOnly, ids: Tensor) -> np.ndarray:
    """The surprisal of ids[1:]."""
    size = PerplexityConfig().batch_size
    return score_document(model, ids[0].numpy(), context=CONTEXT, stride=STRIDE, start_token=None, batch_size=size)


def processor_seconds(work: Callable[[], object]) -> float:
    """Of all threads."""
    began = time.process_time()
    work()
    return time.process_time() - began


def our_side(connection: Connection, dtype: str, threads: int, ids: Tensor) -> None:
    """As `lm perplexity` does it."""
    hardware = select_inference_hardware(HardwareConfig("cpu", dtype, threads))
    model = prepare_for_inference(build()[0], hardware)
    serve(connection, {"score": lambda: processor_seconds(partial(ours, model, ids))})


def their_side(connection: Connection, dtype: str, threads: int, ids: Tensor) -> None:
    """With nothing of ours."""
    torch.set_num_threads(threads)
    model = build()[1].to(getattr(torch, dtype))
    serve(connection, {"score": lambda: processor_seconds(partial(documented_loop, model, ids))})


def compare(dtype: str, ids: Tensor, *, threads: int, rounds: int) -> None:
    """Let the sides take turns in a type, and print what came of it."""
    sides = {
        "lm": Side(our_side, dtype, threads, ids, environment={}),
        "Hugging Face": Side(their_side, dtype, threads, ids, environment={}),
        "Hugging Face, memory kept": Side(their_side, dtype, threads, ids, environment=KEPT_MEMORY),
    }
    taken = [[side.ask("score") for side in sides.values()] for _ in range(1 + rounds)][1:]
    for name, seconds in zip(sides, zip(*taken, strict=True), strict=True):
        middle = statistics.median(seconds)
        ratio = statistics.median(other / ours for other, (ours, *_) in zip(seconds, taken, strict=True))
        print(f"{dtype}: {name:25} {middle:5.1f} s, {ids.shape[1] / middle:4.0f} tokens/s, x {ratio:.2f}", flush=True)
        sides[name].end()


def main() -> None:
    """Print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("threads", 1), ("rounds", 3), ("windows", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    length = CONTEXT + STRIDE * (given.windows - 1)
    ids = torch.randint(VOCABULARY, (1, length), generator=torch.Generator().manual_seed(0))
    model, theirs = build()
    apart = np.nanmax(np.abs(ours(model, ids) - nats_of_theirs(theirs, ids)))
    print(f"greatest difference of a token that both predict from the same tokens: {apart:.1e} nats", flush=True)
    for dtype in given.dtypes:
        compare(dtype, ids, threads=given.threads, rounds=given.rounds)


if __name__ == "__main__":
    main()
