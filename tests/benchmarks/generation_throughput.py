"""Greedy generation against Hugging Face's `generate`: the same GPT-2 shape and weights, interleaved in one process.

python -m tests.benchmarks.generation_throughput [--device cpu] [--threads 2] [--rounds 5] [--tokens 200]

Prints the median tokens/s of each, the prompt included, and the median over rounds of their ratio; and says where the
tokens differ. On a CPU ours are torch's operators, on a GPU recorded steps. `lm bench` compares speed alone, of any
preset, with random weights on both sides.
"""

from __future__ import annotations

import argparse
import statistics

import torch

from lm.config.decoding import SamplingConfig
from lm.config.model import ModelConfig
from lm.decoding.sampler import Sampler
from lm.decoding.sampling import SampleSpec, Token, generate
from lm.decoding.session import DecodeSession
from lm.engine.selection import plan_engines
from lm.hardware import Hardware, time_work
from lm.model.transformer import DecoderOnly, build_model
from tests.lm.model import hugging_face

PROMPT = list(range(1, 33))


def build(dtype: torch.dtype, *, context: int = 256, device: str = "cpu") -> tuple[DecoderOnly, torch.nn.Module]:
    """Six layers of width 384 with a vocabulary of 4096: 12.3 million parameters."""
    config = ModelConfig(
        vocab_size=4096, context_length=context, d_model=384, n_layers=6, n_heads=6, positions="learned",
        norm="layernorm", activation="gelu-tanh", bias=True,
    )  # fmt: skip
    ours = build_model(config)
    assert isinstance(ours, DecoderOnly)
    theirs = hugging_face.gpt2(ours)
    ours, theirs = (model.eval().to(device, dtype) for model in (ours, theirs))
    return ours.requires_grad_(device == "cpu"), theirs  # the compiled step leaves a model with gradients alone


def run_ours(model: DecoderOnly, rows: int, tokens: int, sampler: Sampler) -> list[list[int]]:
    """The generated ids of each row."""
    made: list[list[int]] = [[] for _ in range(rows)]
    asked = [SampleSpec(number, tokens) for number in range(rows)]
    for event in generate(DecodeSession(plan_engines(model)), torch.tensor([PROMPT]), asked, sampler):
        if isinstance(event, Token):
            made[event.row].append(event.id)
    return made


def run_theirs(model: torch.nn.Module, rows: int, tokens: int) -> list[list[int]]:
    """The generated ids of each row."""
    prompt = torch.tensor([PROMPT] * rows, device=next(model.parameters()).device)
    made = model.generate(  # type: ignore[operator]
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    ids: list[list[int]] = made[:, len(PROMPT) :].tolist()
    return ids


def compare(ours: DecoderOnly, theirs: torch.nn.Module, *, rows: int, rounds: int, tokens: int) -> str:
    """One line of the report."""
    greedy = Sampler.from_config(SamplingConfig(greedy=True))
    drawn = Sampler.from_config(SamplingConfig(temperature=0.8, top_k=50, top_p=0.95, seed=0))
    same = run_ours(ours, rows, 20, greedy) == run_theirs(theirs, rows, 20)
    works = (
        lambda: run_ours(ours, rows, tokens, greedy),
        lambda: run_theirs(theirs, rows, tokens),
        lambda: run_ours(ours, rows, tokens, drawn),
    )
    hardware = Hardware(next(ours.parameters()).device.type, "float32", torch.get_num_threads())
    seconds = [[time_work(work, hardware) for work in works] for _ in range(rounds)]
    our, their, sampled = (rows * tokens / statistics.median(column) for column in zip(*seconds, strict=True))
    ratio = statistics.median(theirs / ours for ours, theirs, _ in seconds)
    note = "" if same else "  (the tokens differ)"
    return f"{rows:>4}  {our:>13.0f}  {their:>21.0f}  {ratio:>5.2f}  {sampled:>22.0f}{note}"


def main() -> None:
    """Print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("threads", 2), ("rounds", 5), ("tokens", 200)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print("dtype     rows  ours tokens/s  Hugging Face tokens/s  ratio  ours, sampled tokens/s")
    for dtype in (torch.float32, torch.bfloat16):
        ours, theirs = build(dtype, device=given.device)
        for rows in (1, 16):
            line = compare(ours, theirs, rows=rows, rounds=given.rounds, tokens=given.tokens)
            print(f"{str(dtype)[6:]:<9} {line}", flush=True)


if __name__ == "__main__":
    main()
