"""Low-rank adapters against training all weights, on the supervised task of `tests.benchmarks.supervised`.

    python -m tests.benchmarks.lora [--d-model 128] [--rank 8] [--rates full:0.01 adamw:0.01 muon:0.02] [--seeds 0]

The preset tiny, or one as wide as is said, is pre-trained on the stories without labels. Then all its weights, or
adapters of a rank on all matrices, learn the task for as many steps from the same batches. Prints for each way, rate
and seed the loss on the questions, which were not trained on, the accuracy, the fraction of
trainable parameters and the CPU time of a step.
"""

import argparse
import dataclasses
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

from lm.checkpoint import load_weights
from lm.config.data import DataConfig
from lm.config.lora import LoraConfig
from lm.config.presets import build_run_config
from lm.config.run_config import RunConfig
from lm.corpus.prepare_corpus import prepare_corpus
from lm.corpus.text_corpus import scan_corpus
from lm.model.lora import trainable_weights
from lm.model.transformer import count_parameters
from lm.run_folder import find_checkpoint
from lm.text.text_files import find_text_files
from lm.training.events import Step
from lm.training.loop import train
from lm.training.run import Run
from lm.training.startup import start_run
from lm.training.training_corpus import TrainingCorpus
from tests.benchmarks.supervised import Question, accuracy, pretrained, questions


def configuration(steps: int, d_model: int) -> RunConfig:
    """The preset tiny of a width, on one thread."""
    rate = round(0.02 * (128 / d_model) ** 0.5, 5)
    changes = {
        "model": {"d_model": d_model}, "training": {"steps": steps, "evaluate_every": 0, "learning_rate": rate},
        "hardware": {"threads": 1},
    }  # fmt: skip
    return build_run_config("tiny", changes)


def settings(base: RunConfig, way: str, rate: float, arguments: argparse.Namespace, *, seed: int) -> RunConfig:
    """How the task is learned, in one of the ways."""
    training = dataclasses.replace(
        base.training, steps=arguments.steps, learning_rate=rate, warmup_steps=arguments.steps // 8, evaluate_every=0,
        optimizer="muon" if way == "full" else way, seed=seed,
    )  # fmt: skip
    data = dataclasses.replace(base.data, supervised=True, validation=arguments.held_out)
    lora = LoraConfig(rank=None if way == "full" else arguments.rank)
    return dataclasses.replace(base, training=training, data=data, lora=lora, plan=None)


def written(path: Path, examples: list[Question]) -> Path:
    path.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in examples))
    return path


def main() -> None:
    """Print a row for each way, rate and seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d-model", type=int, default=128)
    parser.add_argument("--pretraining", type=int, default=300)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--rates", nargs="+", default=["full:0.01", "adamw:0.01", "muon:0.02"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--questions", type=int, default=300)
    arguments = parser.parse_args()
    chance = random.Random(0)
    known = ((questions("train"), 2000), (questions("heldout"), arguments.questions))
    examples, asked = (chance.sample(found, min(number, len(found))) for found, number in known)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arguments.held_out = str(written(folder / "questions.jsonl", asked))
        base = pretrained(folder, configuration(arguments.pretraining, arguments.d_model))
        found = find_checkpoint(base.folder)
        task = scan_corpus(
            find_text_files([str(written(folder / "task.jsonl", examples))], DataConfig(supervised=True)),
            settings(base.config, "full", 1.0, arguments, seed=0).data,
        )
        data = TrainingCorpus(prepare_corpus(task, base.tokenizer, folder=folder / "task").folder, base.tokenizer)
        print(f"{len(examples)} examples, {len(asked)} questions, {arguments.steps} steps", flush=True)
        print(f"{'way':<6} {'rate':>7} seed    loss  accuracy  trained  CPU time of a step", flush=True)
        for way, rate in (each.split(":") for each in arguments.rates):
            for seed in arguments.seeds:
                config = settings(base.config, way, float(rate), arguments, seed=seed)
                run = start_run(
                    folder / f"{way}-{rate}-{seed}", config, data, weights=load_weights(found),
                    base=found if config.lora else None,
                )  # fmt: skip
                print(f"{way:<6} {rate:>7} {seed:>4}  {measured(run, asked)}", flush=True)


def measured(run: Run, asked: list[Question]) -> str:
    """Train a run, and say what came of it."""
    times, before = [], time.process_time()
    for event in train(run):
        if isinstance(event, Step):
            times.append(time.process_time() - before)
        before = time.process_time()
    fraction = sum(value.numel() for value in trainable_weights(run.model).values()) / count_parameters(run.model)
    assert run.state.best_loss is not None
    step = f"{1000 * statistics.median(times):.0f} ms"
    return f"{run.state.best_loss:.4f}  {accuracy(run, asked):>8.1%}  {fraction:>7.1%}  {step:>8}"


if __name__ == "__main__":
    main()
