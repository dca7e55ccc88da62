"""Wherever a process is killed, or the disk is full, while it saves: nothing that was saved is lost."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lm import files, run_folder
from lm.checkpoint import load_weights, save_checkpoint
from lm.config.lora import LoraConfig
from lm.config.model import ModelConfig
from lm.config.run import RunConfig
from lm.config.training import TrainingConfig
from lm.errors import LMError, UsageError
from lm.model.transformer import build_model
from lm.run_folder import TrainingState, find_checkpoint
from lm.training.corpus import TrainingCorpus
from lm.training.resuming import resume
from lm.training.starting import start
from lm.training.trainer import train
from tests.lm.training.conftest import stop_after
from tests.lm.training.disk_faults import Dies, Fails, States, copy_tree

SHAPE = {"context_length": 8, "d_model": 8, "n_layers": 1, "n_heads": 1}
SETTINGS = {"batch_size": 2, "evaluate_every": 2, "warmup_steps": 0, "keep": 1}
BETTER = {"learning_rate": 0.05}
"""Each evaluation is better than the one before: of 4.2, 3.3 and 2.8 nats."""
WORSE = {"learning_rate": 0.3, "schedule": "constant"}
"""The first evaluation is the best one: of 2.5 nats, before 3.3 and 2.5."""


@dataclass
class Branch:
    """What a run has come to: its log, its pointers, and the hashes of its checkpoints' weights by their names."""

    log: bytes
    best: str
    last: str
    sums: dict[str, str]

    @classmethod
    def of(cls, run: Path) -> Branch:
        best, last = (find_checkpoint(run, which=which).name for which in ("best", "last"))
        return cls((run / run_folder.METRICS).read_bytes(), best, last, sums(run))

    def is_part_of(self, other: Branch) -> bool:
        """Whether the other one is the same, but that a checkpoint more may be kept."""
        return replace(other, sums={}) == replace(self, sums={}) and self.sums.items() <= other.sums.items()


def sums(run: Path) -> dict[str, str]:
    return {folder.name: files.sha256(folder / run_folder.MODEL) for folder in run_folder.checkpoints(run)}


@dataclass
class Case:
    """Something that is done to runs, which is interrupted.

    Attributes:
        root: the folder of the runs, as they are before.
        act: does it, given a folder of runs.
        recover: does it after an interruption: trains to the end. UsageError if the end has come already.
        before: what the run "run" had come to before, if it had come to an end.
        adapted: the weights of the run "adapted", if there is one, with its adapters.
    """

    root: Path
    act: Callable[[Path], object]
    recover: Callable[[Path], object]
    before: Branch | None = None
    adapted: dict[str, Tensor] | None = None

    def check(self, root: Path, end: Branch) -> None:
        """Check all that a person can see of the runs after an interruption, and that the end is as without one."""
        run = root / "run"
        self.check_as_found(run)
        self.check_adapted(root)
        try:
            self.recover(root)
        except UsageError as error:
            assert "finished after" in str(error)
        found = Branch.of(run)
        assert end.is_part_of(found) or (self.before is not None and self.before.is_part_of(found))
        self.check_as_found(run)
        self.check_adapted(root)
        left = [path.name for folder in (run, run / run_folder.CHECKPOINTS) for path in folder.glob(".*")]
        assert left == [run_folder.LOCK]

    def check_as_found(self, run: Path) -> None:
        """`best` and `last` lead to complete checkpoints, and `best` to what the state has as the best one."""
        hidden = [found[0] for found in run_folder.hidden_checkpoints(run)]
        if not hidden and not run_folder.checkpoints(run):
            assert not any((run / pointer).exists() for pointer in ("best", "last"))
            return
        best, last = (find_checkpoint(run, which=which) for which in ("best", "last"))
        for folder in (best, last):
            run_folder.verify(folder)
        if any(run_folder.FIRST_OF_BRANCH in folder.name for folder in hidden):
            return  # resuming will first complete what was begun
        of_best, of_last = run_folder.load_state(best), run_folder.load_state(last)
        is_put_off = of_last.evaluation_due and of_best.step == of_last.step
        is_newer = of_best.step > of_last.step and of_best.best_step == of_best.step
        assert of_last.best_step in (None, of_best.step) or is_put_off or is_newer
        if self.before is not None:  # both are of the same branch
            (ours, theirs), old = ((folder.name, files.sha256(folder / "model.safetensors")) for folder in (best, last)), self.before.sums.items()
            later = {name for name in self.before.sums if int(name[5:]) > 4}
            assert len({each in old for each in (ours, theirs) if each[0] in later}) < 2

    def check_adapted(self, root: Path) -> None:
        if self.adapted is not None:
            found = load_weights(root / "adapted")
            assert all(torch.equal(found[name], value) for name, value in self.adapted.items())


@pytest.fixture
def begin(shards, byte_tokenizer):
    def begin(folder: Path, *, base: Path | None = None, **training):
        config = RunConfig(ModelConfig(**SHAPE), training=TrainingConfig(**SETTINGS | training))
        if base is None:
            return start(folder, config, TrainingCorpus(shards, byte_tokenizer))
        adapted = replace(config, lora=LoraConfig(rank=1))
        return start(folder, adapted, TrainingCorpus(shards, byte_tokenizer), weights=load_weights(base), base=base)

    return begin


def train_to_the_end(run: Path, **longer: int) -> None:
    list(train(resume(run, longer=TrainingConfig(**longer) if longer else None)))


@pytest.fixture
def first_saves(tmp_path, begin) -> Callable[..., Case]:
    """A run is begun, saved and saved again; the best checkpoint is the last one or the first one."""

    def make(settings: dict, **adapted) -> Case:
        def begun(root: Path):
            return begin(root / "run", steps=4, **settings, **{name: find(root) for name, find in adapted.items()})

        def recover(root: Path) -> None:
            run = root / "run"
            is_saved = run_folder.checkpoints(run) or list(run_folder.hidden_checkpoints(run))
            list(train(resume(run) if is_saved else begun(root)))

        return Case(tmp_path / "runs", lambda root: list(train(begun(root))), recover)

    return make


@pytest.fixture
def later_saves(tmp_path, begin) -> Callable[..., Case]:
    """A run is resumed that was stopped when an evaluation was due, and saved again at that step and at two others."""

    def make(settings: dict) -> Case:
        list(train(begin(tmp_path / "runs" / "run", steps=6, **settings), stop=stop_after(2)))

        def act(root: Path) -> None:
            train_to_the_end(root / "run")

        return Case(tmp_path / "runs", act, act)

    return make


@pytest.fixture
def branching(tmp_path, begin) -> Callable[..., Case]:
    """A run of 8 steps is resumed at step 4, for 7 steps."""

    def make(settings: dict) -> Case:
        run = tmp_path / "runs" / "run"
        list(train(begin(run, steps=8, **settings | {"keep": 3})))

        def act(root: Path) -> None:
            train_to_the_end(root / "run" / "checkpoints" / "step-4", steps=7)

        return Case(tmp_path / "runs", act, lambda root: train_to_the_end(root / "run"), before=Branch.of(run))

    return make


@pytest.fixture
def base_trained_on(tmp_path, begin) -> Callable[..., Case]:
    """A run is trained on, to whose weights another run has adapters; only its latest checkpoint is kept."""

    def make(settings: dict) -> Case:
        run, adapted = tmp_path / "runs" / "run", tmp_path / "runs" / "adapted"
        list(train(begin(run, steps=2, **settings)))
        list(train(begin(adapted, steps=2, base=find_checkpoint(run))))

        def act(root: Path) -> None:
            train_to_the_end(root / "run", steps=4)

        def recover(root: Path) -> None:
            train_to_the_end(root / "run", **({} if run_folder.load_config(find_checkpoint(root / "run", which="last")).plan.steps == 4 else {"steps": 4}))

        return Case(tmp_path / "runs", act, recover, adapted=load_weights(adapted))

    return make


def states_of(case: Case, copies: Path) -> tuple[list[Path], Branch]:
    """The folder of the runs as each kill in the course of what is done leaves it, and the end without any."""
    root = copy_tree(case.root, copies / "whole") if case.root.exists() else copies / "whole"
    root.mkdir(parents=True, exist_ok=True)
    disk = States(root, copies)
    with disk.watching():
        case.act(root)
    return disk.found, Branch.of(root / "run")


CASES = [("first_saves", BETTER), ("first_saves", WORSE), ("later_saves", BETTER), ("later_saves", WORSE),
         ("branching", BETTER), ("branching", WORSE), ("base_trained_on", WORSE)]  # fmt: skip


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_first(name, settings, tmp_path, request):
    import time
    t = time.time()
    case = request.getfixturevalue(name)(settings)
    t1 = time.time()
    found, end = states_of(case, tmp_path / "copies")
    t2 = time.time()
    print(name, settings, end.best, end.last, sorted(end.sums), case.before and (case.before.best, sorted(case.before.sums)), len(found), t1 - t, t2 - t1, end="  ")
    for state in found:
        case.check(state, end)
    print(time.time() - t2)
