"""Runs that several processes train together: what they learn from, and the processes, which do many runs in one go."""

import contextlib
import os
import random
import shutil
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lm.config.data import DataConfig, ParallelTextConfig
from lm.config.hardware import DistributionConfig, HardwareConfig
from lm.config.lora import LoraConfig
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.config.tokenizer import TokenizerConfig
from lm.config.training import TrainingConfig
from lm.corpus import survey
from lm.corpus.prepare import prepare_corpus
from lm.corpus.survey import scan_corpus, train_tokenizers
from lm.distributed.parallel import SINGLE_PROCESS, World, init_distributed
from lm.text.find import find_text_files
from lm.text.parallel_text import find_parallel_texts
from lm.training.loop import train
from lm.training.run import Run
from lm.training.training_corpus import TrainingCorpus
from tests.forked import Forked
from tests.lm.training.runs import resume_run, start_run


@dataclass(frozen=True)
class Case:
    """A run, by how its config differs.

    Attributes:
        kind: what it learns from: text, examples or pairs.
        stops: after so many steps, to be resumed by the same processes.
        shard: whether each process has a share of the weights.
    """

    kind: str = "text"
    model: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    parallel: dict[str, Any] = field(default_factory=dict)
    lora: dict[str, Any] = field(default_factory=dict)
    stops: int | None = None
    shard: bool = False

    @property
    def config(self) -> RunConfig:
        shape = {"context_length": 16, "d_model": 32, "n_layers": 2, "n_heads": 2, "dropout": 0.0}
        if self.kind == "pairs":
            shape |= {"n_encoder_layers": 2}
        if "architecture" in self.model:
            del shape["n_heads"]
        batch = {"batch_tokens": 120} if self.kind == "pairs" else {"batch_size": 7}
        settings = {"steps": 12, "warmup_steps": 3, "evaluate_every": 4, "bleu_sentences": 5, **batch}
        return RunConfig(
            ModelConfig(**(shape | self.model)),
            data_kind=self.kind,
            parallel=ParallelTextConfig(**self.parallel),
            training=TrainingConfig(**(settings | self.training)),
            hardware=HardwareConfig(device="cpu", dtype="float32", threads=1),
            distribution=DistributionConfig(shard=self.shard),
            lora=LoraConfig(**self.lora),
        )


CASES = {
    "gpt": Case(training={"micro_batch_size": 2, "clip": 0.5}),
    "muon": Case(
        model={"tie_embeddings": False, "value_residual": True, "positions": "rotary"},
        training={"optimizer": "muon", "ema": 0.9, "micro_batch_size": 3},
    ),
    "pairs": Case("pairs", training={"label_smoothing": 0.1, "optimizer": "muon"}, parallel={"bpe_dropout": 0.1}),
    "examples": Case("examples", training={"batch_size": 3}),
    "few rows": Case(training={"batch_size": 1, "steps": 6}),
    "dropout": Case(model={"dropout": 0.2}, training={"steps": 12}),
    "stopped": Case(model={"dropout": 0.2}, training={"steps": 12, "optimizer": "muon"}, stops=5),
    "unstopped": Case(model={"dropout": 0.2}, training={"steps": 12, "optimizer": "muon"}),
    "masked": Case(model={"objective": "masked"}, training={"steps": 12}),
    "experts": Case(model={"experts": 3}, training={"steps": 12, "expert_balance": 0.0}),
    "r-drop": Case(model={"dropout": 0.2}, training={"steps": 6, "r_drop": 0.5}),
    "adapters": Case(lora={"rank": 2}, training={"steps": 12, "optimizer": "muon", "ema": 0.9}),
    "recurrent": Case(model={"architecture": "lstm"}, training={"steps": 12}),
}

CASES |= {
    f"{name} sharded": replace(case, shard=True)
    for name, case in CASES.items()
    if "architecture" not in case.model and not case.lora
}


def write_texts(folder: Path) -> None:
    """What the runs learn from."""
    chance, words = random.Random(1), ["ba", "du", "ki", "mo", "ne", "pa", "ru"]
    lines = [" ".join(chance.choices(words, k=chance.randint(2, 6))) for _ in range(400)]
    (folder / "text.txt").write_text("\n".join(lines))
    rows = [f'{{"prompt": "{line}", "completion": " {line[::-1]}"}}\n' for line in lines if len(line) < 8]
    (folder / "examples.jsonl").write_text("".join(rows))
    for split, some in (("train", lines[:300]), ("val", lines[300:340])):
        (folder / f"{split}.en").write_text("".join(line + "\n" for line in some))
        (folder / f"{split}.de").write_text("".join(line.upper() + "\n" for line in some))


def corpus(kind: str, folder: Path, config: RunConfig) -> TrainingCorpus:
    """The corpus of a kind, made of what is in the folder or found in the cache."""
    if kind == "pairs":
        found, held_out = (
            find_parallel_texts(
                config.parallel, source=[str(folder / f"{split}.en")], target=[str(folder / f"{split}.de")]
            )
            for split in ("train", "val")
        )
        surveyed = survey.scan_parallel_corpus(found, DataConfig(), config.parallel, validation=held_out)
        made = train_tokenizers(surveyed, TokenizerConfig(vocab_size=290), config.parallel)
        return TrainingCorpus(prepare_corpus(surveyed, made[0], parallel=config.parallel).folder, *made)
    name = "examples.jsonl" if kind == "examples" else "text.txt"
    files = find_text_files([str(folder / name)], config.data)
    surveyed = scan_corpus(files, config.data)
    tokenizer = train_tokenizers(surveyed, TokenizerConfig(kind="byte"), has_mask=config.model.is_masked)[0]
    return TrainingCorpus(prepare_corpus(surveyed, tokenizer).folder, tokenizer)


def trained(name: str, texts: Path, out: Path, world: World = SINGLE_PROCESS) -> None:
    """Train the run of a case to its end, in a folder of its name."""
    case = CASES[name]
    run = started(name, texts, out, world)
    if case.stops:
        taken = iter(range(1, 1_000_000))
        for _ in train(run, stop=lambda: next(taken) >= case.stops):
            pass
        run = resumed(out / name, world)
    for _ in train(run):
        pass


def started(name: str, texts: Path, out: Path, world: World = SINGLE_PROCESS) -> Run:
    case = CASES[name]
    prepared = corpus(case.kind, texts, case.config) if world.is_main else None
    return start_run(out / name, case.config, prepared, world=world)


def resumed(folder: Path, world: World = SINGLE_PROCESS, *, shard: bool | None = None) -> Run:
    """Resume a run, and with its weights shared out or not if that is to change."""
    changed = {} if shard is None else {"distribution": {"shard": shard}}
    return resume_run(folder, world=world, changed=changed)


def halfway(run: Path, out: Path, *, step: int = 4) -> Path:
    """A copy of a run as it was after a step that it has a checkpoint of."""
    shutil.copytree(run, out)
    for folder in (out / "checkpoints").iterdir():
        if int(folder.name.removeprefix("step-")) > step:
            shutil.rmtree(folder)
    for pointer in ("best", "last"):
        (out / pointer).write_text(f"step-{step}\n")
    return out


def in_processes(size: int, texts: Path, out: Path, work: Sequence[str]) -> None:
    """Train the cases named, or resume runs, named as "how:path", in so many processes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    group = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with tempfile.TemporaryFile("w+") as said, contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                Forked(
                    _work, texts, out, *work, stdout=said, stderr=said,
                    env=os.environ | group | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                )
            )
            for rank in range(size)
        ]  # fmt: skip
        codes = [process.wait() for process in processes]
        said.seek(0)
        assert not any(codes), said.read()


def _work(texts: str, out: str, *work: str) -> None:
    with init_distributed() as world:
        for name in work:
            how, _, path = name.rpartition(":")
            if not how:
                trained(name, Path(texts), Path(out), world)
                continue
            for _ in train(resumed(Path(path), world, shard={"shared": True, "whole": False}.get(how))):
                pass
