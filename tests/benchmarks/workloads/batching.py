"""`lm generate --prompts`: continuous batching against fixed batches."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lm.config.inference import SamplingConfig
from lm.decoding import DecodeSession
from lm.decoding.batching import Sample, decode
from lm.decoding.sampling import Sampler
from lm.engine import plan_engines
from lm.model import DecoderOnly
from tests.benchmarks.comparison import Workload
from tests.benchmarks.workloads.decoding import load_model
from tests.benchmarks.workloads.timing import timer


def requests(number: int, vocab_size: int, context: int) -> list[Sample]:
    """Return prompts and how many tokens follow each, both lengths drawn evenly by a seed."""
    chance, sampler, drawn = random.Random(1), Sampler.from_config(SamplingConfig(seed=0)), []
    for place in range(number):
        prompt = [chance.randrange(vocab_size) for _ in range(chance.randint(10, context // 2))]
        drawn.append(Sample(prompt, sampler, sampler.rng(place), chance.randint(1, context - len(prompt)), place))
    return drawn


def continuous(folder: Path, threads: int, *, shape: str, dtype: str, prompts: int, rows: int) -> Workload:
    """Continue prompts in a batch that is refilled as texts end."""
    model = load_model(folder, threads, shape, dtype)
    asked = requests(prompts, model.config.vocab_size, model.config.context_length)
    asked.sort(key=lambda request: len(request.prompt))
    return Workload(timer(lambda: _generate(model, asked, rows)))


def fixed(folder: Path, threads: int, *, shape: str, dtype: str, prompts: int, rows: int) -> Workload:
    """Continue the same prompts in batches, each of which begins when the last has ended."""
    model = load_model(folder, threads, shape, dtype)
    asked = requests(prompts, model.config.vocab_size, model.config.context_length)
    batches = [asked[first : first + rows] for first in range(0, len(asked), rows)]
    return Workload(timer(lambda: [_generate(model, batch, rows) for batch in batches]))


def _generate(model: DecoderOnly, asked: Sequence[Sample], rows: int) -> int:
    samples = [replace(sample) for sample in asked]
    return sum(1 for _ in decode(DecodeSession(plan_engines(model)), samples, batch_size=rows))
