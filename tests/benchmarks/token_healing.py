"""How well a run continues prompts that are cut at random characters, with token healing and without.

    python -m tests.benchmarks.token_healing RUN TEXT [--prompts 300] [--characters 8]

TEXT is unseen by the run. Prints, for each kind of cut, the bits/character of the true continuation, summed over all
its tokenizations; and how often the first word of a greedy continuation is the true one.
"""

import argparse
import dataclasses
import math
import random
from collections import defaultdict
from pathlib import Path

import torch

from lm.checkpoint import load_model
from lm.config.decoding import SamplingConfig
from lm.config.hardware import HardwareConfig
from lm.decoding.generator import Generator, encode_prompt
from lm.decoding.session import DecodeSession
from lm.decoding.token_healing import PromptEnding, heal_prompts
from lm.hardware import select_inference_hardware
from lm.model.transformer import DecoderOnly

_PROMPT, _WORD = 300, 40
"""Characters of a prompt, and of what follows it at most up to the end of a word."""
_TOKENS = 12


def nats(generator: Generator, ids: list[int], text: str) -> float:
    """Return the log-probability that a text follows some IDs."""
    tokenizer = generator.tokenizer
    own = tokenizer.encode(text)
    spelled = {
        *(tuple(own[:n]) for n in range(len(own))),
        *(tuple(tokenizer.encode(text[:n])) for n in range(len(text))),
    }
    spellings = {spelling: len(b"".join(map(tokenizer.token_bytes, spelling))) for spelling in spelled}
    ending = PromptEnding(ids, text.encode(), spellings)
    (found,) = heal_prompts(DecodeSession(generator.plan()), [ending], tokenizer, generator.sampler)
    return float(torch.cat([cover.scores for cover in found]).logsumexp(0))


def healed_nats(generator: Generator, prompt: str, text: str) -> float:
    """Return the log-probability that a text follows a prompt whose end may be tokenized in any way."""
    ids = encode_prompt(generator.tokenizer, prompt)
    ending = PromptEnding.find(generator.tokenizer, prompt, ids)
    if ending is None:
        return nats(generator, ids, text)
    kept, end = [*ending.prefix_ids], ending.text.decode()
    return nats(generator, kept, end + text) - nats(generator, kept, end)


def first_word(text: str) -> str:
    """White space, and what follows it up to the next."""
    start = text[: len(text) - len(text.lstrip())]
    return start + (text.split() or [""])[0]


def kind_of(before: str, after: str) -> str:
    """Where a text is cut between two characters."""
    return "after a space" if before == " " else "inside a word" if (before + after).isalnum() else "elsewhere"


@torch.inference_mode()
def main() -> None:
    """A table of the kinds of cuts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("text", type=Path)
    for name, default in (("prompts", 300), ("characters", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    loaded, text = (
        load_model(arguments.run, select_inference_hardware(HardwareConfig("cpu", "float32", 1))),
        arguments.text.read_text(),
    )
    assert isinstance(loaded.model, DecoderOnly)
    healing = Generator(loaded.model, loaded.tokenizer, SamplingConfig(greedy=True, max_tokens=_TOKENS))
    plain = dataclasses.replace(healing, config=dataclasses.replace(healing.config, token_healing=False))
    chance, bits, right = random.Random(0), defaultdict(list), defaultdict(list)
    for _ in range(arguments.prompts):
        cut = chance.randrange(_PROMPT, len(text) - _WORD)
        prompt, rest = text[cut - _PROMPT : cut], text[cut : cut + _WORD]
        ahead, word = rest[: arguments.characters], first_word(rest)
        ids = encode_prompt(loaded.tokenizer, prompt)
        found = [nats(plain, ids, ahead), healed_nats(healing, prompt, ahead)]
        same = [first_word(each.samples(prompt)[0].text) == word for each in (plain, healing)]
        for kind in ("all", kind_of(text[cut - 1], text[cut])):
            bits[kind].append([-each / math.log(2) / arguments.characters for each in found])
            right[kind].append(same)
    print("| cut | prompts | bits/character, plain | healed | first words right, plain | healed |")
    print("|-|-|-|-|-|-|")
    for kind, of_kind in bits.items():
        values = torch.tensor(of_kind)
        cells = [f"{float(mean):.2f} ± {float(error):.2f}" for mean, error in
                 zip(values.mean(0), values.std(0) / len(values) ** 0.5, strict=True)]  # fmt: skip
        counts = [str(sum(column)) for column in zip(*right[kind], strict=True)]
        print(f"| {kind} | {len(of_kind)} | {' | '.join(cells)} | {' | '.join(counts)} |")


if __name__ == "__main__":
    main()
