"""Supervised fine-tuning from a pre-trained model against training from scratch, on a labelled task of the stories.

    python -m tests.benchmarks.supervised [--pretraining 800] [--steps 100 200 300] [--questions 120]

The task: given two neighbouring paragraphs of a story, name the plot (one of sixteen) that the story was made along,
which the generator knows and no story says. Examples are from `train.txt`, questions from `heldout.txt`, whose
combinations of hero, plot and thing are not in `train.txt`. The preset tiny is pre-trained on `train.txt` without
labels; then it and a model with random weights learn the task in the same way, on the same batches. Prints, for runs
of some lengths, each with its whole schedule, the share of questions that greedy generation answers with exactly the
label.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import tempfile
from pathlib import Path

import torch

from corpora.stories import corpus as stories
from lm.config import RunConfig, SamplingConfig
from lm.data import cache, documents, preparation
from lm.data import corpus as corpora
from lm.decoding.generate import Token, end_ids, generate, prompt_ids
from lm.decoding.sampling import Sampler
from lm.decoding.steps import DecoderSteps
from lm.model.transformer import DecoderOnly
from lm.presets import resolve
from lm.training.run import Run, start
from lm.training.trainer import train

CORPUS = Path(stories.__file__).parent
Question = tuple[str, str]


def questions() -> tuple[list[Question], list[Question]]:
    """(passage, name of the plot) of `train.txt` and of `heldout.txt`."""
    texts = {
        name: set((CORPUS / f"{name}.txt").read_text().removesuffix("\n").split(f"\n{stories.SEPARATOR}\n"))
        for name in ("train", "heldout")
    }
    found: dict[str, list[Question]] = {name: [] for name in texts}
    left = sum(map(len, texts.values()))
    for story in stories.stories(stories.SEED):
        for name, members in texts.items():
            if story.text in members:
                neighbours = itertools.pairwise(story.text.split("\n\n"))
                found[name] += [("\n\n".join(passage), story.scheme) for passage in neighbours]
                left -= 1
        if not left:
            return found["train"], found["heldout"]
    raise AssertionError("the stories never end")


def pretrained(folder: Path, steps: int) -> Run:
    """The preset tiny after some steps on the stories, without labels."""
    config = resolve("tiny", {"training": {"steps": steps, "evaluate_every": 0}, "hardware": {"dtype": "float32"}})
    sources = documents.resolve([str(CORPUS / "train.txt")])
    tokenizer = cache.train_tokenizer(corpora.survey(sources, config.data), config.tokenizer)
    tokens = preparation.prepare(sources, tokenizer, config.data, folder / "tokens").folder
    run = start(folder / "pretrained", config, tokenizer, tokens)
    for _ in train(run):
        pass
    return run


def settings(steps: int, rate: float) -> RunConfig:
    """How both models learn the task."""
    training = {"steps": steps, "learning_rate": rate, "evaluate_every": 0, "warmup_steps": 20, "schedule": "linear"}
    return resolve(
        "tiny",
        {"training": training, "data": {"supervised": True, "validation": "0"}, "hardware": {"dtype": "float32"}},
    )


def learned(run: Run, asked: list[Question]) -> float:
    """The accuracy of a run at its end."""
    for _ in train(run):
        pass
    return accuracy(run, asked)


@torch.inference_mode()
def accuracy(run: Run, asked: list[Question]) -> float:
    """The share of questions whose greedy continuation is the label and the end."""
    assert isinstance(run.model, DecoderOnly)
    run.model.eval()
    ends, greedy, right = end_ids(run.tokenizer), Sampler.of(SamplingConfig(greedy=True)), 0
    longest = max(len(run.tokenizer.encode(f"\n{label}")) for _, label in asked) + len(ends)
    for passage, label in asked:
        start, *ids = prompt_ids(run.tokenizer, passage)
        prompt = [start, *ids[longest - run.config.model.context_length :]]  # cut as in training
        events = generate(DecoderSteps(run.model), prompt, greedy, max_tokens=longest, stop_ids=ends)
        answer = [event.id for event in events if isinstance(event, Token)]
        right += answer[-1:] == list(ends) and run.tokenizer.decode(answer) == f"\n{label}"
    run.model.train()
    return right / len(asked)


def main() -> None:
    """Print a row for each number of steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pretraining", type=int, default=800)
    parser.add_argument("--steps", type=int, nargs="+", default=[100, 200, 300])
    parser.add_argument("--questions", type=int, default=120)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    given = parser.parse_args()
    examples, asked = questions()
    asked = random.Random(0).sample(asked, min(given.questions, len(asked)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = (json.dumps({"text": text, "label": label}) + "\n" for text, label in examples)
        (folder / "task.jsonl").write_text("".join(lines))
        base = pretrained(folder, given.pretraining)
        weights = {key: value.clone() for key, value in base.model.state_dict().items()}
        sources = documents.resolve([str(folder / "task.jsonl")], supervised=True)
        task = preparation.prepare(sources, base.tokenizer, settings(1, 1.0).data, folder / "examples").folder
        print(
            f"{len(examples)} examples, {len(asked)} questions; {given.pretraining} steps of pre-training", flush=True
        )
        print("steps  pre-trained  from scratch")
        for steps in given.steps:
            config = settings(steps, given.learning_rate)
            tuned = start(folder / f"tuned-{steps}", config, base.tokenizer, task, weights=weights)
            scratch = start(folder / f"scratch-{steps}", config, base.tokenizer, task)
            print(f"{steps:>5}  {learned(tuned, asked):>11.1%}  {learned(scratch, asked):>12.1%}", flush=True)


if __name__ == "__main__":
    main()
