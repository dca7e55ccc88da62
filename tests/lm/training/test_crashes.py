"""Wherever a process is killed, or the disk is full, while it saves: nothing that was saved is lost."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lm import files, run_folder
from lm.checkpoint import load_weights, save_checkpoint
from lm.config.model import ModelConfig
from lm.config.run_config import LoraConfig, RunConfig, TrainingConfig
from lm.errors import LMError, UsageError
from lm.run_folder import TrainingState, find_checkpoint
from lm.tokenizer import Tokenizer
from lm.training.loop import train
from lm.training.training_corpus import TrainingCorpus
from tests.lm.disk_faults import Dies, Fails, States, contents, copy_tree
from tests.lm.training.conftest import stop_after
from tests.lm.training.runs import resume_run, start_run

SHAPE = {"context_length": 8, "d_model": 8, "n_layers": 1, "n_heads": 1}
SETTINGS = {"batch_size": 2, "evaluate_every": 2, "warmup_steps": 0, "keep_checkpoints": 1}
BETTER = {"learning_rate": 0.05}
"""Each evaluation is better than the one before: of 4.2, 3.3 and 2.8 nats."""
WORSE = {"learning_rate": 0.32, "schedule": "constant"}
"""The first evaluation is the best one: of 2.6 nats, before 3.1, 2.9 and 2.9."""


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """What was written is there for other processes before it is on the disk; other tests check that it comes there."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@dataclass
class Outcome:
    """What a run has come to: its log, its pointers, and the hashes of its checkpoints' weights by their names."""

    log: bytes
    best: str
    last: str
    sums: dict[str, str]

    @classmethod
    def of(cls, run: Path) -> Outcome:
        best, last = (find_checkpoint(run, which=which).name for which in ("best", "last"))
        return cls(
            (run / run_folder.METRICS).read_bytes() if (run / run_folder.METRICS).exists() else b"",
            best,
            last,
            sums(run),
        )

    def is_part_of(self, other: Outcome) -> bool:
        """Whether the other one is the same, but that a checkpoint more may be kept."""
        return replace(other, sums={}) == replace(self, sums={}) and self.sums.items() <= other.sums.items()


def sums(run: Path) -> dict[str, str]:
    return {folder.name: files.sha256(folder / run_folder.MODEL) for folder in run_folder.list_checkpoints(run)}


@dataclass
class Case:
    """Something that is done to runs, which is interrupted.

    Attributes:
        root: the folder of the runs, as they are before.
        act: does it, given a folder of runs.
        recover: does it after an interruption: trains to the end. UsageError if the end has come already.
        adapted: the weights of the run "adapted", if there is one, with its adapters.
    """

    root: Path
    act: Callable[[Path], object]
    recover: Callable[[Path], object]
    adapted: dict[str, Tensor] | None = None

    def check(self, root: Path, end: Outcome) -> None:
        """Check all that a person can see of the runs after an interruption, and that the end is as without one."""
        run = root / "run"
        self.check_as_found(run)
        self.check_adapted(root)
        with suppress(UsageError):  # it has come to its end
            self.recover(root)
        found = Outcome.of(run)
        assert end.is_part_of(found)
        self.check_as_found(run)
        self.check_adapted(root)
        left = [path.name for folder in (run, run / run_folder.CHECKPOINTS) for path in folder.glob(".*")]
        assert left == [run_folder.LOCK]

    def check_as_found(self, run: Path) -> None:
        """`best` and `last` lead to complete checkpoints, and `best` to the best one that the last one knows of."""
        if not run_folder.list_checkpoints(run):
            assert not any((run / pointer).exists() for pointer in ("best", "last"))
            return
        best, last = (find_checkpoint(run, which=which) for which in ("best", "last"))
        for folder in (best, last):
            run_folder.verify_checkpoint(folder)
        of_best, of_last = run_folder.load_state(best), run_folder.load_state(last)
        is_put_off = of_last.evaluation_due and of_best.step == of_last.step
        is_unnamed = of_last.best_step == of_last.step  # the next process names it
        assert of_last.best_step in (None, of_best.step) or is_put_off or is_unnamed

    def check_adapted(self, root: Path) -> None:
        if self.adapted is not None:
            found = load_weights(root / "adapted")
            assert all(torch.equal(found[name], value) for name, value in self.adapted.items())


@pytest.fixture
def begin(shards, byte_tokenizer):
    def begin(folder: Path, *, base: Path | None = None, **training):
        config = RunConfig(ModelConfig(**SHAPE), training=TrainingConfig(**SETTINGS | training))
        if base is None:
            return start_run(folder, config, TrainingCorpus(shards, byte_tokenizer))
        adapted = replace(config, lora=LoraConfig(rank=1))
        return start_run(folder, adapted, TrainingCorpus(shards, byte_tokenizer), from_run=base)

    return begin


def train_to_the_end(run: Path, **longer: int) -> None:
    list(train(resume_run(run, new_length=TrainingConfig(**longer) if longer else None)))


@pytest.fixture
def first_saves(tmp_path, begin) -> Callable[..., Case]:
    """A run is begun, saved and saved again; the best checkpoint is the last one or the first one."""

    def make(settings: dict) -> Case:
        def begun(root: Path):
            return begin(root / "run", steps=4, **settings)

        def recover(root: Path) -> None:
            run = root / "run"
            list(train(resume_run(run) if run_folder.list_checkpoints(run) else begun(root)))

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
def base_trained_on(tmp_path, begin) -> Callable[..., Case]:
    """A run is trained on, to whose weights another run has adapters; only its latest checkpoint is kept."""

    def make(settings: dict) -> Case:
        run, adapted = tmp_path / "runs" / "run", tmp_path / "runs" / "adapted"
        list(train(begin(run, steps=2, **settings)))
        list(train(begin(adapted, steps=2, base=find_checkpoint(run))))

        def act(root: Path) -> None:
            train_to_the_end(root / "run", steps=4)

        def recover(root: Path) -> None:
            last = find_checkpoint(root / "run", which="last")
            train_to_the_end(root / "run", **({} if run_folder.checkpoint_step(last) == 4 else {"steps": 4}))

        return Case(tmp_path / "runs", act, recover, adapted=load_weights(adapted))

    return make


def states_of(case: Case, copies: Path) -> tuple[list[Path], Outcome]:
    """The folder of the runs as each kill in the course of what is done leaves it, and the end without any."""
    root = copies / "whole"
    if case.root.exists():
        shutil.copytree(case.root, root)
    root.mkdir(parents=True, exist_ok=True)
    disk = States(root, copies, each=False)
    with disk.watching():
        case.act(root)
    return disk.found, Outcome.of(root / "run")


EVERY = pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
"""Which operations are interrupted: a sample of them, and all."""

CASES = [("first_saves", WORSE), ("later_saves", WORSE), ("base_trained_on", BETTER)]


@pytest.mark.medium
@pytest.mark.parametrize(("name", "settings"), CASES)
@EVERY
def test_nothing_is_lost_wherever_training_is_killed(name, settings, every, tmp_path, request):
    case = request.getfixturevalue(name)(settings)
    states, end = states_of(case, tmp_path / "copies")
    for state in states[::every]:
        case.check(state, end)


def fails(case: Case, root: Path, number: int, *, stays: bool, end: Outcome) -> bool:
    """Do what is done to runs while the operation of a number fails, which is told of, unless it doesn't matter.

    Returns:
        Whether there was an operation of this number.
    """
    disk = Fails(root, number, stays=stays)
    try:
        with disk.watching():
            case.act(root)
        assert end.is_part_of(Outcome.of(root / "run"))
    except (LMError, OSError) as error:
        assert "No space left on device" in str(error)  # noqa: PT017 (it need not be raised)
    return disk.failed


CONFIG = RunConfig(ModelConfig(vocab_size=257, **SHAPE))


def save(run: Path, state: TrainingState, tokenizer: Tokenizer) -> None:
    """A checkpoint whose weights say which step it is of."""
    weights = {"weight": torch.tensor([state.step])}
    save_checkpoint(
        run, config=CONFIG, tokenizer=tokenizer, model=weights, optimizer=weights, state=state,
        is_best=state.best_step == state.step,
    )  # fmt: skip


@pytest.fixture
def one_save(tmp_path, byte_tokenizer) -> Case:
    run = tmp_path / "runs" / "run"
    run.mkdir(parents=True)
    save(run, TrainingState(step=2, best_step=2), byte_tokenizer)

    def act(root: Path) -> None:
        save(root / "run", TrainingState(step=4, best_step=4), byte_tokenizer)

    return Case(tmp_path / "runs", act, act)


@pytest.mark.medium
@EVERY
def test_a_killed_process_leaves_what_the_tests_above_take_for_it(every, one_save, tmp_path):
    (tmp_path / "copies").mkdir()
    disk = States(shutil.copytree(one_save.root, tmp_path / "whole"), tmp_path / "copies")
    with disk.watching():
        one_save.act(tmp_path / "whole")
    for number in range(0, len(disk.operations), every):
        root = shutil.copytree(one_save.root, tmp_path / "killed" / str(number))
        pid = killed(one_save, root, number)
        left = copy_tree(root, tmp_path / "left" / str(number), pid=pid)
        assert contents(left) == contents(disk.at[number])
        one_save.check_as_found(left / "run")


def killed(case: Case, root: Path, number: int) -> int:
    """Do what is done to runs in a process that dies before the operation of a number; returns its ID."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, none of which is needed
        pid = os.fork()
    if not pid:
        try:
            with Dies(root, number).watching():
                case.act(root)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == Dies.STATUS
    return pid


@pytest.mark.parametrize("stays", [False, pytest.param(True, marks=pytest.mark.slow)])
@EVERY
def test_a_save_that_fails_is_told_of_and_loses_nothing(every, one_save, stays, tmp_path):
    """The next save is then as it would have been."""
    one_save.act(shutil.copytree(one_save.root, tmp_path / "whole"))
    end = Outcome.of(tmp_path / "whole" / "run")
    for number in count(0, every):
        root = shutil.copytree(one_save.root, tmp_path / str(number))
        if not fails(one_save, root, number, stays=stays, end=end):
            break
        one_save.check_as_found(root / "run")
        one_save.act(root)
        assert contents(root) == contents(tmp_path / "whole")
    assert number > 50
