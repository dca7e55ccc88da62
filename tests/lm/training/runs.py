"""Runs that are started and resumed in one call."""

from collections.abc import Mapping
from pathlib import Path

from lm import files
from lm.config.run_config import RunConfig, TrainingConfig
from lm.config.run_spec import DataFiles, RunSpec
from lm.run_folder import MODEL, find_checkpoint
from lm.training import objective as hardware_selection
from lm.training.parallel import SINGLE_PROCESS, World
from lm.training.plan import Plan, add_run_plan, plan_corpus
from lm.training.rules import TrainingSpeed
from lm.training.run import Run, prepare_resuming
from lm.training.training_corpus import TrainingCorpus, open_data


def start_run(
    folder: Path,
    config: RunConfig,
    corpus: TrainingCorpus | None = None,
    *,
    from_run: Path | None = None,
    speed: TrainingSpeed | None = None,
    max_steps: int | None = None,
    world: World = SINGLE_PROCESS,
) -> Run:
    """Plan, create and open a run; on ranks other than 0 only open it."""
    data = None
    if corpus is not None:
        base = find_checkpoint(from_run) if from_run and config.lora else None
        if base:
            config = config.replace(base_sha256=files.sha256(base / MODEL))
        plan = plan_corpus(Plan(config), corpus)
        data = open_data(corpus.folder, plan.config)
        micro_batch = next(data.batch(0).split(config.training.micro_batch_size))
        hardware = speed.hardware if speed else hardware_selection.select_training_hardware(plan.config, micro_batch)
        plan = add_run_plan(
            plan, RunSpec(DataFiles(("text.txt",))), corpus, data, hardware,
            processes=world.size, step_seconds=speed.step_seconds if speed else 1.0, max_steps=max_steps,
        )  # fmt: skip
        Run.create(folder, plan, base=base)
    world.broadcast(0)
    return Run.open(folder, world, from_run=from_run, data=data)


def resume_run(
    folder: Path,
    *,
    new_length: TrainingConfig | None = None,
    changed: Mapping | None = None,
    spent: float = 0.0,
    world: World = SINGLE_PROCESS,
) -> Run:
    """Prepare a run to be resumed, and open it."""
    if world.is_main:
        prepare_resuming(folder, length=new_length, changed=changed, spent=spent, processes=world.size)
    world.broadcast(0)
    return Run.open(folder, world, spent=spent)
