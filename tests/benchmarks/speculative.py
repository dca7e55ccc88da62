"""Generation with a draft against generation without, by the same run, interleaved in one process.

    python -m tests.benchmarks.speculative RUN TEXT [--draft RUN ...] [--dtype float32] [--threads 1] [--rounds 3]

A draft is a smaller run with the same tokenizer, or `prompt`. The prompts are the first words of documents of TEXT;
they are continued greedily, and sampled at temperature 0.8. Prints tokens per CPU second (median over rounds), the
ratio to decoding without a draft, and the acceptance rate of draft tokens.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch

from lm.checkpoint import load_model
from lm.config.decoding import SamplingConfig
from lm.config.hardware import HardwareConfig
from lm.decoding.batching import Token
from lm.decoding.generator import PROMPT_LOOKUP, Generator
from lm.hardware import Hardware, select_inference_hardware
from lm.model.transformer import DecoderOnly

_WORDS, _TOKENS = 4, 100


def prompts(text: Path, number: int) -> list[str]:
    """The first words of some documents, which empty lines part."""
    documents = [each for each in text.read_text(encoding="utf-8").split("\n\n") if each.strip()]
    return [" ".join(each.split()[:_WORDS]) for each in documents[:number]]


def rate(generator: Generator, texts: list[str]) -> float:
    """Tokens per CPU second."""
    began, tokens = time.process_time(), 0
    for number, text in enumerate(texts):
        tokens += sum(isinstance(event, Token) for event in generator.generate(text, first=number))
    return tokens / (time.process_time() - began)


def _draft(name: str, hardware: Hardware) -> DecoderOnly | str:
    if name == PROMPT_LOOKUP:
        return name
    model = load_model(Path(name), hardware).model
    assert isinstance(model, DecoderOnly)
    return model


def main() -> None:
    """Print a table for greedy decoding and one for sampling."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--draft", nargs="+", default=[PROMPT_LOOKUP], metavar="RUN")
    parser.add_argument("--dtype", default="float32")
    for name, default in (("threads", 1), ("rounds", 3), ("prompts", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    hardware = select_inference_hardware(HardwareConfig("cpu", arguments.dtype, arguments.threads))
    torch.set_num_threads(arguments.threads)
    loaded = load_model(arguments.run, hardware)
    drafts = {"": None, **{name: _draft(name, hardware) for name in arguments.draft}}
    texts = prompts(arguments.text, arguments.prompts)
    assert isinstance(loaded.model, DecoderOnly)
    for settings in (SamplingConfig(greedy=True), SamplingConfig(temperature=0.8, seed=0)):
        config = SamplingConfig(**{**vars(settings), "max_tokens": _TOKENS, "token_healing": False})
        generators = {
            name: Generator(loaded.model, loaded.tokenizer, config, draft=draft) for name, draft in drafts.items()
        }
        for generator in generators.values():
            rate(generator, texts[:1])
        rounds = [[rate(each, texts) for each in generators.values()] for _ in range(arguments.rounds)]
        print(f"\n{'greedy' if config.greedy else 'sampled'}, {arguments.dtype}, {arguments.threads} threads")
        for place, (name, generator) in enumerate(generators.items()):
            speed = statistics.median(rates[place] for rates in rounds)
            ratio = statistics.median(rates[place] / rates[0] for rates in rounds)
            stats = generator.acceptance_stats
            accepted = f"  accepted {stats.accepted / stats.proposed:.0%} of draft tokens" if stats.proposed else ""
            print(f"{name or 'no draft':<40} {speed:>8.0f} tokens/s {ratio:>6.2f}{accepted}", flush=True)


if __name__ == "__main__":
    main()
