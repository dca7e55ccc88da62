"""Runs that several processes train together: what they learn from, and the processes, which do many runs in one go."""

import contextlib
import os
import random
import shutil
import socket
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lm.config.presets import build_run_config
from lm.config.run_config import RunConfig
from lm.config.run_spec import DataFiles
from lm.training.loop import train
from lm.training.parallel import SINGLE_PROCESS, World, init_distributed
from lm.training.training_corpus import CorpusFiles
from tests.forked import Forked
from tests.lm.training.runs import resume_run, start_run

MUON = {"optimizer": "muon"}
STOPPED_AT = 5
CASES: dict[str, dict[str, dict[str, Any]]] = {
    "gpt": {"training": {"micro_batch_size": 2, "clip": 0.5}},
    "muon": {"model": {"value_residual": True}, "training": {**MUON, "ema": 0.9, "micro_batch_size": 3}},
    "pairs": {"training": {"label_smoothing": 0.1, **MUON}, "parallel": {"bpe_dropout": 0.1}},
    "few rows": {"training": {"batch_size": 1, "steps": 6}},
    "stopped": {"model": {"dropout": 0.2}, "training": MUON},  # and resumed by the same processes
    "unstopped": {"model": {"dropout": 0.2}, "training": MUON},
    "masked": {"model": {"objective": "masked"}},
    "experts": {"model": {"experts": 3}, "training": {"expert_balance": 0.0}},
    "adapters": {"lora": {"rank": 2}, "training": {**MUON, "ema": 0.9}},
    "recurrent": {"model": {"architecture": "lstm"}},
    "ensemble": {"model": {"members": 2}, "training": {**MUON, "micro_batch_size": 3}},
}  # fmt: skip
"""Runs, by how their settings differ; "NAME sharded" are those whose processes have a shard of the weights."""
CASES |= {f"{name} sharded": case for name, case in CASES.items() if name not in ("adapters", "recurrent")}


def config_of(name: str) -> RunConfig:
    case, pairs = CASES[name], name.startswith("pairs")
    settings: dict[str, Mapping[str, Any]] = {
        **case,
        "model": {"context_length": 16, "d_model": 32, "n_layers": 2, "dropout": 0.0, **case.get("model", {})},
        "training": {
            "steps": 12, "warmup_steps": 3, "evaluate_every": 4, "bleu_sentences": 5, "optimizer": "adamw",
            "learning_rate": 1e-3, **({"batch_tokens": 120} if pairs else {"batch_size": 7}),
            **case.get("training", {}),
        },
        "tokenizer": {"vocab_size": 290} if pairs else {"kind": "byte"},
        "distribution": {"shard": name.endswith("sharded")},
        "hardware": {"device": "cpu", "dtype": "float32", "threads": 1},
    }  # fmt: skip
    return build_run_config("translation-tiny" if pairs else "tiny", settings)


def write_texts(folder: Path) -> None:
    """What the runs learn from."""
    chance, words = random.Random(1), ["ba", "du", "ki", "mo", "ne", "pa", "ru"]
    lines = [" ".join(chance.choices(words, k=chance.randint(2, 6))) for _ in range(400)]
    (folder / "text.txt").write_text("\n".join(lines))
    for split, some in (("train", lines[:300]), ("val", lines[300:340])):
        (folder / f"{split}.en").write_text("".join(line + "\n" for line in some))
        (folder / f"{split}.de").write_text("".join(line.upper() + "\n" for line in some))


def trained(name: str, texts: Path, out: Path, world: World = SINGLE_PROCESS) -> None:
    """Train the run of a case to its end, in a folder of its name."""
    config, corpus = config_of(name), None
    if world.is_main:
        train_en, train_de, val_en, val_de = (
            str(texts / f"{split}.{side}") for split in ("train", "val") for side in ("en", "de")
        )
        pairs = DataFiles(source=(train_en,), target=(train_de,), validation_source=val_en, validation_target=val_de)
        files = pairs if name.startswith("pairs") else DataFiles(text=(str(texts / "text.txt"),))
        corpus = CorpusFiles(files, config).prepare(config, None, contextlib.nullcontext)
    run = start_run(out / name, config, corpus, world=world)
    if name.startswith("stopped"):
        taken = iter(range(1, 1_000_000))
        list(train(run, stop=lambda: next(taken) >= STOPPED_AT))
        run = resume_run(out / name, world=world)
    list(train(run))


def halfway(run: Path, out: Path, *, step: int = 4) -> Path:
    """A copy of a run as it was after a step that it has a checkpoint of."""
    shutil.copytree(run, out)
    for folder in (out / "checkpoints").iterdir():
        if int(folder.name.removeprefix("step-")) > step:
            shutil.rmtree(folder)
    for pointer in ("best", "last"):
        (out / pointer).write_text(f"step-{step}\n")
    return out


def in_processes(size: int, texts: Path, out: Path, names: Sequence[str]) -> None:
    """Train the cases named in so many processes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    group = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with tempfile.TemporaryFile("w+") as said, contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                Forked(
                    _work, texts, out, *names, stdout=said, stderr=said,
                    env=os.environ | group | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                )
            )
            for rank in range(size)
        ]  # fmt: skip
        codes = [process.wait() for process in processes]
        said.seek(0)
        assert not any(codes), said.read()


def _work(texts: str, out: str, *names: str) -> None:
    with init_distributed() as world:
        for name in names:
            trained(name, Path(texts), Path(out), world)
