"""`lm train --resume`: a run that goes on exactly where it stopped."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cli.console.messages import fact, note
from cli.flags.options import Given
from cli.training import clock
from cli.training.preparing import corpus_of, prepare
from cli.training.request import RUNS, NewRun, TrainingFiles
from lm.config.presets import DEFAULT_PRESET, configure
from lm.config.run import CHANGEABLE, RunConfig
from lm.config.training import LENGTHS
from lm.distributed import launched
from lm.distributed.world import World
from lm.errors import InputError, UsageError
from lm.run_folder import (
    CONFIG,
    checkpoints,
    find_checkpoint,
    holds_runs,
    is_run,
    load_config,
    lost_last,
    run_of,
)
from lm.training import begin
from lm.training.compiling import check_compiler
from lm.training.history import newest_unfinished
from lm.training.run import Run


def resume_run(path: Path, files: TrainingFiles, given: Given, world: World) -> Run:
    """Load a run to go on with, and describe on stderr where it goes on.

    Args:
        path: a run, one of its checkpoints, or a folder of runs, which stands for the newest unfinished one.
        files: the corpus, for a run whose tokens are gone.
        given: the settings; of a run that goes on, only its length can be changed.
        world: the processes that train it.

    Raises:
        InputError: there is no such run, it is damaged, or its tokens are gone.
        UsageError: other settings are given, or the run is finished.
    """
    if holds_runs(path) or (path == RUNS and not path.exists()):
        path = newest_unfinished(path)
    data = _prepared_again(path, files) if files else None
    lengths = {name: value for name, value in given.typed["training"].items() if name in LENGTHS}
    longer = configure(DEFAULT_PRESET, {"training": lengths}).training if lengths else None
    written = _lengths_in(path) if longer is None else {}
    run = begin.resume(path, data=data, longer=longer, changed=_changed(given), spent=clock.elapsed(), world=world)
    if run.config.training.compile:
        check_compiler(run.plan.device, is_recurrent=run.config.model.is_recurrent)
    _describe(run)
    _note_other_length(run, written)
    return run


def _lengths_in(path: Path) -> dict[str, Any]:
    """The length in the settings in the folder of a run; none where these are missing or damaged."""
    with contextlib.suppress(InputError):
        return _length(load_config(run_of(path)))
    return {}


def _length(config: RunConfig) -> dict[str, Any]:
    return {name: value for name in LENGTHS if (value := getattr(config.training, name)) is not None}


def _note_other_length(run: Run, written: Mapping[str, Any]) -> None:
    """Note that the settings of a run named another length than its checkpoint, as after an edit."""
    if written and written != (planned := _length(run.config)):
        flags = " ".join(f"--{name} {value}" for name, value in written.items())
        was = ", ".join(f"{name} {value}" for name, value in planned.items())
        fact(
            "note", f"{run.folder / CONFIG} had another length than the checkpoint ({was}); to train that long: {flags}"
        )


def _changed(given: Given) -> dict[str, dict[str, Any]]:
    """What was given of how the run is computed, by section."""
    return {
        section: {name: value for name, value in given.typed[section].items() if name in names}
        for section, names in CHANGEABLE.items()
    }


def begun_before(new: NewRun, *, is_anew: bool) -> Path | None:
    """The run that these processes had begun and saved when the launcher started them anew, since one had failed.

    Args:
        new: what is given for a new run.
        is_anew: whether the launcher has, on any machine.

    Raises:
        UsageError: the launcher may do so, and would not know the run again.
    """
    if launched.may_restart() and new.out is None:
        raise UsageError("where processes may be started anew, name the folder of the run (-o)")
    if not is_anew or new.out is None:
        return None
    return new.out if is_run(new.out) and checkpoints(new.out) else None


def resume_begun(path: Path, world: World) -> Run:
    """Go on with a run that was begun by the same command, so that its settings are what is asked for."""
    run = begin.resume(path, spent=clock.elapsed(), world=world)
    _describe(run)
    return run


def _prepared_again(run: Path, files: TrainingFiles) -> Path:
    """The folder of the tokens of a corpus, made with the settings and the tokenizers of a run."""
    checkpoint = find_checkpoint(run, which="last")
    return prepare(corpus_of(files), load_config(checkpoint), checkpoint).folder


def _describe(run: Run) -> None:
    note(f"resume  {run.folder} at step {run.state.step:,} of {run.plan.steps:,}")
    if lost := lost_last(run.folder):
        note(f"        {lost}, the last checkpoint, is gone: what was learned after step {run.state.step:,} is lost")
    if run.other_branch:
        names = ", ".join(folder.name for folder in run.other_branch)
        note(f"        {names}: of another branch from here on; removed once this one has saved")
