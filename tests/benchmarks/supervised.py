"""Supervised fine-tuning from a pre-trained model against training from scratch, on a labelled task of the stories.

    python -m tests.benchmarks.supervised [--pretraining 300] [--steps 80 120 160] [--seeds 0 1 2]

The task: given a sentence of a story that names one of its characters and has no pronoun, say which pronoun is theirs
(he, she or they), which the sentence does not say. Examples are from `train.txt`,
questions from `heldout.txt`. The preset tiny is pre-trained on `train.txt` without labels; then it and models with
random weights learn the task in the same way, on the same batches. Prints, for runs of some lengths, each with its
whole schedule, the fraction of questions that greedy generation answers exactly: mean and range over seeds.
"""

import argparse
import json
import random
import re
import statistics
import tempfile
from pathlib import Path

import torch

from lm.config.data import DataConfig
from lm.config.decoding import SamplingConfig
from lm.config.presets import build_run_config
from lm.config.run_config import RunConfig
from lm.corpus.prepare_corpus import prepare_corpus
from lm.corpus.text_corpus import load_or_train_tokenizer, scan_corpus
from lm.decoding.generator import Generator, encode_prompt
from lm.model.transformer import DecoderOnly
from lm.text.text_files import find_text_files
from lm.tokenizer.special_tokens import build_text_frame
from lm.training.loop import train
from lm.training.run import Run
from lm.training.startup import start_run
from lm.training.training_corpus import TrainingCorpus

CORPUS = Path(__file__).parents[2] / "corpora" / "stories"
LONGEST = 140  # characters
TELLING = re.compile(
    r"\b(he|she|they|his|hers?|him|theirs?|them|himself|herself|themselves|boy|girl|child)\b", re.IGNORECASE
)
Question = tuple[str, str]
NAMES = {
    "she": "Mia Nora Lily Ada Ruby Clara Ella Maya Zoe Ivy Leila Anna Greta Lucy Rosa Amina Edie Hazel Poppy Willow "
    "Clover Tansy Pepper Juniper Fern Dot Maple Minnow Olive Cricket Heather Biscuit",
    "he": "Tom Sam Leo Max Finn Omar Hugo Noah Ravi Jack Theo Ben Emil Arthur Luca Oliver Karim Pip Rowan Bramble "
    "Rusty Acorn Barley Thistle Nutmeg Twig Bark Burdock Chestnut Flint Toby",
    "they": "Robin Alex Charlie Quinn Sasha Pebble Sorrel Reed Marlow",
}
"""The characters of the stories by their pronoun."""


def questions(file: str) -> list[Question]:
    """(sentence, pronoun of the one it names) of a file of stories."""
    pronouns = {name: pronoun for pronoun, names in NAMES.items() for name in names.split()}
    text = (CORPUS / f"{file}.txt").read_text()
    found = set()
    for sentence in re.split(r"(?<=[.!?\"])\s+", text):
        names = {word for word in re.findall(r"\w+", sentence) if word in pronouns}
        if len(names) == 1 and len(sentence) < LONGEST and not TELLING.search(sentence):
            found.add((sentence, pronouns[names.pop()]))
    return sorted(found)


def pretrained(folder: Path, config: RunConfig) -> Run:
    """A model after all its steps on the stories, without labels."""
    corpus = scan_corpus(find_text_files([str(CORPUS / "train.txt")]), config.data)
    tokenizer = load_or_train_tokenizer(corpus, config.tokenizer)
    tokens = prepare_corpus(corpus, tokenizer, folder=folder / "tokens").folder
    run = start_run(folder / "pretrained", config, TrainingCorpus(tokens, tokenizer))
    for _ in train(run):
        pass
    return run


def settings(steps: int, rate: float, seed: int = 0) -> RunConfig:
    """How both models learn the task."""
    training = {"steps": steps, "learning_rate": rate, "evaluate_every": 0, "warmup_steps": 20, "schedule": "linear"}
    data = {"supervised": True, "validation": "0"}
    return build_run_config("tiny", {"training": {**training, "seed": seed}, "data": data})


def learned(run: Run, asked: list[Question]) -> float:
    """The accuracy of a run at its end."""
    for _ in train(run):
        pass
    return accuracy(run, asked)


@torch.inference_mode()
def accuracy(run: Run, asked: list[Question]) -> float:
    """The fraction of questions whose greedy continuation is the label and the end."""
    assert isinstance(run.model, DecoderOnly)
    run.model.eval()
    ends, right = build_text_frame(run.tokenizer).after, 0
    longest = max(len(run.tokenizer.encode(f"\n{label}")) for _, label in asked) + len(ends)
    generator = Generator(run.model, run.tokenizer, SamplingConfig(greedy=True, max_tokens=longest))
    for passage, label in asked:
        start, *ids = encode_prompt(run.tokenizer, passage)
        prompt = [start, *ids[longest - run.config.model.context_length :]]  # cut as in training
        (answer,) = generator.samples(prompt)
        right += answer.tokens[-1:] == list(ends) and answer.text == f"\n{label}"
    run.model.train()
    return right / len(asked)


def main() -> None:
    """Print a row for each number of steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pretraining", type=int, default=300)
    parser.add_argument("--steps", type=int, nargs="+", default=[80, 120, 160])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--learning-rate", type=float, default=0.02)
    arguments = parser.parse_args()
    chance = random.Random(0)
    examples, asked = questions("train"), questions("heldout")
    examples = chance.sample(examples, min(arguments.examples, len(examples)))
    asked = chance.sample(asked, min(arguments.questions, len(asked)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = (json.dumps({"text": text, "label": label}) + "\n" for text, label in examples)
        (folder / "task.jsonl").write_text("".join(lines))
        base = pretrained(
            folder, build_run_config("tiny", {"training": {"steps": arguments.pretraining, "evaluate_every": 0}})
        )
        weights = {key: value.clone() for key, value in base.model.state_dict().items()}
        corpus = scan_corpus(
            find_text_files([str(folder / "task.jsonl")], DataConfig(supervised=True)), settings(1, 1.0).data
        )
        task = prepare_corpus(corpus, base.tokenizer, folder=folder / "examples").folder
        print(
            f"{len(examples)} examples, {len(asked)} questions, {arguments.pretraining} steps of pre-training",
            flush=True,
        )
        print("steps       pre-trained      from scratch")
        for steps in arguments.steps:
            found = []
            for kind, initial in (("tuned", weights), ("scratch", None)):
                runs = [
                    start_run(
                        folder / f"{kind}-{steps}-{seed}", settings(steps, arguments.learning_rate, seed),
                        TrainingCorpus(task, base.tokenizer), weights=initial,
                    )
                    for seed in arguments.seeds
                ]  # fmt: skip
                found.append([learned(run, asked) for run in runs])
            cells = (f"{statistics.mean(each):.1%} ({min(each):.0%}-{max(each):.0%})" for each in found)
            print(f"{steps:>5}  " + "  ".join(f"{cell:>16}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
