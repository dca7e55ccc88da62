"""Optimizer steps of `lm train` against a plain loop over Hugging Face's GPT-2 of the same shape, alternating.

    python -m tests.benchmarks.training_step [--preset nanogpt-cpu] [--steps 200] [--rounds 5] [--dtype float32]

Prints the median milliseconds a step of each, and the ratio. Both sides: same batch, context and arithmetic; AdamW.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from lm.config import ModelConfig
from lm.data import documents, preparation, tokenizer_training
from lm.data.corpus import survey, training_texts
from lm.presets import resolve
from lm.training.run import Run, start
from lm.training.trainer import train


def make_run(folder: Path, preset: str, dtype: str, steps: int) -> Run:
    """A run of the preset on random text that has as many characters as the preset's vocabulary."""
    config = resolve(preset, {"training": {"steps": steps, "evaluate_every": 0}, "hardware": {"dtype": dtype}})
    alphabet = [chr(0x100 + index) for index in range(config.model.vocab_size)]
    drawn = torch.randint(len(alphabet), (300_000,), generator=torch.Generator().manual_seed(0)).tolist()
    (folder / "text.txt").write_text("".join(alphabet) + "".join(alphabet[index] for index in drawn))
    sources = documents.resolve([str(folder / "text.txt")])
    corpus = survey(sources, config.data)
    kind = resolve("nanogpt-cpu").tokenizer
    tokenizer = tokenizer_training.train(training_texts(corpus), kind, corpus_bytes=corpus.source_bytes).tokenizer
    tokens = preparation.prepare(sources, tokenizer, config.data, folder / "tokens").folder
    return start(folder / "run", config, tokenizer, tokens)


def hugging_face(config: ModelConfig) -> GPT2LMHeadModel:
    """GPT-2 of the same shape."""
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=config.vocab_size, n_positions=config.context_length, n_embd=config.d_model,
            n_layer=config.n_layers, n_head=config.n_heads, resid_pdrop=config.dropout, embd_pdrop=config.dropout,
            attn_pdrop=config.dropout, use_cache=False,
        )
    ).train()  # fmt: skip


def plain_steps(model: GPT2LMHeadModel, optimizer: torch.optim.Optimizer, run: Run, count: int) -> list[float]:
    """Milliseconds of each of some steps of a plain loop."""
    cast = contextlib.nullcontext() if run.plan.dtype == "float32" else torch.autocast("cpu", dtype=torch.bfloat16)
    times = []
    for _ in range(count):
        began = time.perf_counter()
        inputs = torch.from_numpy(run.data.batch(0).inputs)
        with cast:
            loss = model(inputs, labels=inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(1000 * (time.perf_counter() - began))
    return times


def main() -> None:
    """Time both, print both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="nanogpt-cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder), arguments.preset, arguments.dtype, arguments.steps * (arguments.rounds + 1))
        theirs = hugging_face(run.config.model)
        optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-3)
        events, ours_ms, theirs_ms = train(run), [], []
        for round_number in range(arguments.rounds + 1):
            ours = [1000 * next(events).seconds for _ in range(arguments.steps)]
            plain = plain_steps(theirs, optimizer, run, arguments.steps)
            if round_number:  # the first round warms up
                ours_ms += ours
                theirs_ms += plain
        ours, plain = statistics.median(ours_ms), statistics.median(theirs_ms)
        shape = (
            f"{run.batch_size} x {run.context}, d_model {run.config.model.d_model}, {run.config.model.n_layers} layers"
        )
        print(f"{arguments.preset}: {shape}, {run.plan.dtype}, {run.plan.threads} threads, torch {torch.__version__}")
        print(f"ours {ours:.1f} ms a step, Hugging Face {plain:.1f} ms: {plain / ours:.2f} times as fast")


if __name__ == "__main__":
    main()
