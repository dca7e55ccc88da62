"""`lm generate --prompts`: a refilled batch against the same prompts in fixed batches, interleaved in one process.

    python -m tests.benchmarks.many_prompts [--threads 1] [--rounds 3] [--prompts 500] [--rows 16 64]

A GPT-2 shape of 12.3 million random weights; prompts of 10 to 200 tokens, and texts of 1 to 200 tokens after them, both
lengths drawn evenly by a seed, as if a stop token came at random. A fixed batch is what `lm generate` has without
--prompts: its prompts are read together, texts that end leave it, and the next begins when the last has ended.

Prints the median over rounds of seconds and of processor seconds of each way, and of the ratio of processor seconds to
those of fixed batches of 16 in the order of the file, which other work on the machine changes least.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from lm.config.decoding import SamplingConfig
from lm.decoding.sampler import Sampler
from lm.decoding.sampling import Request, SampleSpec, Token, generate_with_continuous_batching
from lm.decoding.session import DecodeSession
from lm.engine.selection import plan_engines
from lm.model.transformer import DecoderOnly
from tests.benchmarks.generation_throughput import build

Way = Callable[[], list[list[int]]]


def requests(number: int, vocab_size: int, context: int) -> list[Request]:
    """Prompts and how many tokens follow each, drawn by a seed."""
    chance = random.Random(1)
    drawn = []
    for place in range(number):
        prompt = [chance.randrange(vocab_size) for _ in range(chance.randint(10, 200))]
        drawn.append(Request(prompt, SampleSpec(place, min(chance.randint(1, 200), context - len(prompt)))))
    return drawn


def drawn(model: DecoderOnly, asked: Sequence[Request], sampler: Sampler, *, rows: int) -> list[list[int]]:
    """The ids that follow each prompt, in the order of the prompts' numbers; the batch is refilled."""
    made: dict[int, list[int]] = {request.spec.number: [] for request in asked}
    for event in generate_with_continuous_batching(DecodeSession(plan_engines(model)), asked, sampler, batch_size=rows):
        if isinstance(event, Token):
            made[event.row].append(event.id)
    return [made[number] for number in sorted(made)]


def in_fixed_batches(model: DecoderOnly, asked: Sequence[Request], sampler: Sampler, *, rows: int) -> list[list[int]]:
    """The same, a batch after another."""
    parts = [drawn(model, asked[first : first + rows], sampler, rows=rows) for first in range(0, len(asked), rows)]
    return [ids for part in parts for ids in part]


def main() -> None:
    """Print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("threads", 1), ("rounds", 3), ("prompts", 500)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--greedy", action="store_true")
    parser.add_argument("--rows", type=int, nargs="+", default=[64], help="of the refilled batch")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model = build(torch.float32, context=512)[0].eval().requires_grad_(False)  # as one that was loaded to be used
    asked = requests(given.prompts, model.config.vocab_size, model.config.context_length)
    ordered = sorted(asked, key=lambda request: len(request.prompt))
    sampler = Sampler.from_config(SamplingConfig(greedy=given.greedy, seed=0))
    ways: dict[str, Way] = {
        "fixed, 16": lambda: in_fixed_batches(model, asked, sampler, rows=16),
        **{f"refilled, {rows}": partial(drawn, model, ordered, sampler, rows=rows) for rows in given.rows},
    }
    report(ways, rounds=given.rounds)


def report(ways: dict[str, Way], *, rounds: int) -> None:
    """Take turns, and print a line for each way."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    texts = {}
    for _ in range(rounds):
        for name, way in ways.items():
            wall, processor = time.perf_counter(), time.process_time()
            texts[name] = way()
            times[name].append((time.perf_counter() - wall, time.process_time() - processor))
            print(f"{name:<14} {times[name][-1][0]:7.1f} s  {times[name][-1][1]:7.1f} s of the processor", flush=True)
    first, tokens = next(iter(ways)), sum(map(len, next(iter(texts.values()))))
    print("\nway             CPU seconds  tokens/s of it  ratio  texts that differ from the first way's")
    for name, measured in times.items():
        wall, processor = (statistics.median(column) for column in zip(*measured, strict=True))
        ratio = statistics.median(theirs[1] / ours[1] for theirs, ours in zip(times[first], measured, strict=True))
        other = sum(one != two for one, two in zip(texts[name], texts[first], strict=True))
        print(f"{name:<14}  {wall:7.1f}  {processor:16.1f}  {tokens / processor:14.0f}  {ratio:5.2f}  {other}")


if __name__ == "__main__":
    main()
