"""Train the run of a specification: plan and create it, or prepare to resume one; then open and train it."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from lm import files
from lm.checkpoint import load_tokenizers
from lm.config.presets import DEFAULT_PRESET, build_run_config
from lm.config.run_config import SECTIONS, RunConfig, parse_duration
from lm.config.run_spec import RunSpec, refuse_settings
from lm.config.settings import LENGTHS, check_requirements
from lm.corpus import Manifest, open_split
from lm.data import TrainingData
from lm.errors import UsageError
from lm.evaluation.metrics import compute_ngram_losses
from lm.evaluation.perplexity import describe_seen_held_out
from lm.run_folder import (
    MODEL,
    RUNS,
    describe_parent,
    find_checkpoint,
    list_checkpoints,
    load_config,
    load_state,
    refuse_adapters,
    refuse_existing,
)
from lm.training import launcher_env, run_log
from lm.training.loop import train
from lm.training.measure import SpeedMeter
from lm.training.objective import select_training_hardware
from lm.training.parallel import World, init_distributed
from lm.training.plan import (
    Measured,
    Plan,
    add_run_plan,
    plan_corpus,
    plan_length,
    plan_model,
    plan_spec,
    probe_config,
    should_choose_size,
    should_choose_time,
)
from lm.training.rules import check_startup
from lm.training.run import (
    Run,
    check_teacher,
    copy_checkpoint,
    initial_weights,
    measure_initial_loss,
    prepare_resuming,
)
from lm.training.training_corpus import (
    CorpusFiles,
    ProgressCallback,
    TrainingCorpus,
    check_model_fits_data,
    open_data,
)

_MEASURE_FRACTION, _MEASURE_SECONDS, _MAX_MEASURE_SECONDS = 0.01, 1.5, 20.0
"""Of the budget; at most for steps on random tokens, and on a run's own data: the first steps of pairs, on lengths new
to the processor's kernels, took twice as long as later ones, so that plans had a third of the steps."""


@dataclass(frozen=True)
class Planned:
    """Event: a new run is planned, but not created yet."""

    plan: Plan
    corpus: TrainingCorpus
    data: TrainingData


@dataclass(frozen=True)
class Started:
    """Event: a run has been created or resumed; training events follow."""

    run: Run
    is_resumed: bool


Event = TrainingCorpus | Planned | Started | run_log.Event


def train_events(
    spec: RunSpec,
    *,
    stop: Callable[[], bool] = lambda: False,
    progress: ProgressCallback = nullcontext,
    start_time: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    speed_meter: SpeedMeter | None = None,
) -> Generator[Event, None, None]:
    """Train the run of a specification; a generator of events on each rank.

        with closing(train_events(spec)) as events:
            for event in events:
                ...

    Preparation, start or resumption, steps, evaluations and checkpoints are events. A single process saves the run if
    the generator is closed early; `RunSpec(resume=...)` continues it. Rank 0 prepares the run.

    Args:
        stop: called once per step on each rank; if one returns True, the run is saved and training ends.
        progress: of tokenisation.
        start_time: start of a budget, on the clock [default: now].
        clock: in seconds, for budgets.
        speed_meter: measures training speed for budgets.

    Raises:
        InputError: a file is wrong, the folder holds a run, or there is no run to resume.
        UsageError: settings don't fit together, or don't fit the files; or other processes have not been started.
        TrainingError: a loss or a weight is no longer finite; checkpoints are untouched.
    """
    began = clock() if start_time is None else start_time
    with init_distributed() as world:
        if spec.processes > 1 and world.size == 1:
            raise UsageError("one process trains here: several are started by the command lm train, or by torchrun")
        is_restarted = world.all_reduce_max(launcher_env.restart_count()) > 0
        if is_restarted and spec.out is not None and list_checkpoints(Path(spec.out)):
            spec = RunSpec(resume=spec.out)
        preparation = _Preparation(spec, world, progress, speed_meter or SpeedMeter(), lambda: clock() - began)
        prepared = None
        if world.is_main:
            prepare = preparation.start if spec.resume is None else preparation.resume
            folder, evaluation_seconds = yield from prepare()
            prepared = folder, preparation.parent, evaluation_seconds, preparation.elapsed()
        folder, parent, evaluation_seconds, spent = world.broadcast(prepared)
        run = Run.open(
            folder,
            world,
            from_run=parent,
            data=preparation.data,
            spent=spent,
            evaluation_seconds=evaluation_seconds,
            clock=clock,
        )
        with closing(run):
            yield Started(run, is_resumed=spec.resume is not None)
            yield from train(run, stop=stop)


@dataclass
class _Preparation:
    """Writes the folder of a new run, or how another one continues; on rank 0.

    Attributes:
        elapsed: returns seconds since the start of a budget.
        data: of a new run.
        parent: the checkpoint that a new run starts from, if it does.
    """

    spec: RunSpec
    world: World
    progress: ProgressCallback
    speed_meter: SpeedMeter
    elapsed: Callable[[], float]
    data: TrainingData | None = None
    parent: Path | None = None

    def resume(self) -> Generator[Event, None, tuple[Path, float]]:
        """Prepare to resume a run, or a copy of a checkpoint; returns its folder, and the seconds of an evaluation."""
        spec, data = self.spec, None
        run = Path(str(spec.resume))
        if (find_checkpoint(run, which="last") == run) != (spec.out is not None):
            raise UsageError("a run is resumed in its folder, a checkpoint in that of a new run (out)")
        changed = {
            section: {name: value for name, value in spec.typed(section).items() if name not in LENGTHS}
            for section in SECTIONS
        }
        if names := changed["training"].get("teacher"):
            teachers = changed["training"]["teacher"] = _find_teachers(names)
            last = find_checkpoint(run, which="last")
            config = load_config(last)
            if len(names) != len(config.training.teacher):
                raise UsageError("a resumed run keeps its teachers: name as many, where they are now")
            for teacher in teachers:
                check_teacher(Path(teacher), load_tokenizers(last), config)
        if spec.out is not None:
            copy_checkpoint(run, Path(spec.out))
            run = Path(spec.out)
        if spec.data:
            last = find_checkpoint(run, which="last")
            config = load_config(last)
            corpus = CorpusFiles(spec.data, config).prepare(config, last, self.progress)
            yield corpus
            data = corpus.folder
        lengths = {name: value for name, value in spec.typed("training").items() if name in LENGTHS}
        check_startup(lengths.get("budget"), self.elapsed())
        prepare_resuming(
            run,
            length=build_run_config(DEFAULT_PRESET, {"training": lengths}).training if lengths else None,
            changed=changed,
            data=data,
            spent=self.elapsed(),
            processes=self.world.size,
        )
        return run, run_log.read_evaluation_seconds(run)

    def start(self) -> Generator[Event, None, tuple[Path, float]]:  # noqa: PLR0915 (one story)
        """Plan and create a new run: survey, plan the model, prepare the corpus, measure, plan the length.

        Returns:
            The folder, and under a budget the seconds of an evaluation.
        """
        spec, meter = self.spec, self.speed_meter
        self.parent = parent = None if spec.from_run is None else find_checkpoint(Path(spec.from_run))
        reading = {section: spec.settings[section] for section in ("files", "data", "parallel")}
        found = CorpusFiles(spec.data, build_run_config(DEFAULT_PRESET, reading))
        spec = spec.replace(kind=found.kind)
        plan = plan_spec(spec, parent=None if parent is None else load_config(parent))
        teachers = _find_teachers(plan.config.training.teacher)
        training = plan.config.training.replace(teacher=teachers)
        plan = dataclasses.replace(plan, config=plan.config.replace(training=training))
        needs_speed = should_choose_size(spec) or should_choose_time(spec)
        check_requirements(SECTIONS, spec.settings, plan.known_values(is_open=needs_speed))
        if spec.out is not None:  # before anything is measured or prepared
            refuse_existing(Path(spec.out))
        if found.prepared:
            if spec.tokenizer is not None:
                raise UsageError("prepared tokens have a tokenizer: give no other")
            for section in ("tokenizer", "data"):
                refuse_settings(section, spec.typed(section), beside="prepared tokens")
            made_with = dataclasses.replace(plan.config, data=Manifest.read(found.prepared).config)
            plan = plan.replace_config("prepared corpus", made_with)
        if needs_speed:
            probe = probe_config(plan, pairs=spec.kind == "pairs")
            seconds = _measuring_seconds(plan.config, _MEASURE_SECONDS)
            rate = self.world.size * meter.measure_flop_rate(probe, seconds=seconds)
            plan = plan_model(
                plan,
                spec,
                text_bytes=found.text_bytes,
                flops_per_second=rate,
                elapsed=self.elapsed(),
            )
        # what would otherwise be refused only after the corpus is prepared
        check_model_fits_data(plan.config.model, pairs=spec.kind == "pairs")
        if plan.config.lora:
            if parent is None:
                raise UsageError("adapters need the weights of a run: name it, or leave them out")
            refuse_adapters(parent)
        named = spec.tokenizer or spec.from_run or next(iter(teachers), None)
        corpus = found.prepare(plan.config, Path(named) if named else None, self.progress)
        if parent is not None:
            spare = max(0, load_config(parent).model.vocab_size - corpus.tokenizer.vocab_size)
            seen = describe_seen_held_out(Path(str(spec.from_run)), corpus.folder)
            corpus = dataclasses.replace(corpus, spare_tokens=spare, notes=[*corpus.notes, *filter(None, [seen])])
        yield corpus
        for prompt in plan.config.training.sample:
            (corpus.source_tokenizer or corpus.tokenizer).encode(prompt)  # is refused now rather than after steps
        plan = plan_corpus(plan, corpus)
        for teacher in teachers:
            check_teacher(Path(teacher), (corpus.tokenizer, corpus.source_tokenizer), plan.config)
        data = open_data(corpus.folder, plan.config)
        measured = self._measure(plan, corpus, data, parent)
        plan, speed, max_steps = plan_length(plan, corpus, data, measured)
        self.data = open_data(corpus.folder, plan.config)  # the length may have changed its settings
        check_startup(plan.config.training.budget, self.elapsed())
        config, base = plan.config, None
        if parent is not None:
            config = dataclasses.replace(config, origin=describe_parent(parent))
            if config.lora:
                config, base = dataclasses.replace(config, base_sha256=files.sha256(parent / MODEL)), parent
        micro_batch = config.training.micro_batch_size
        first = next(self.data.batch(0).split(micro_batch))
        hardware = speed.hardware if speed else select_training_hardware(config, first)
        plan = add_run_plan(
            dataclasses.replace(plan, config=config),
            spec,
            corpus,
            self.data,
            hardware,
            tokenizer=str(named or found.prepared or ""),
            processes=self.world.size,
            step_seconds=speed.step_seconds if speed else 1.0,
            spent=self.elapsed(),
            max_steps=max_steps,
        )
        yield Planned(plan, corpus, self.data)
        folder = Path(spec.out) if spec.out else _create_folder(spec.data.names[0], str(config.preset))
        Run.create(folder, plan, base=base)
        return folder, speed.evaluation_seconds if speed else 0.0

    def _measure(self, plan: Plan, corpus: TrainingCorpus, data: TrainingData, parent: Path | None) -> Measured:
        """Measure what the length of the run is planned from."""
        config, measured, budget = plan.config, Measured(), plan.config.training.budget
        is_text = config.data_kind == "text" and not config.model.is_masked
        is_regularised = plan.is_regularised and budget is not None
        tokenizers = (corpus.tokenizer, corpus.source_tokenizer)
        ngram_losses, tokens_per_byte = list[float](), 0.0
        # a few characters or bytes are too short to tell anything
        if is_text and (parent is not None or is_regularised) and corpus.tokenizer.kind == "bpe":
            split, held_out = (open_split(corpus.folder, name) for name in ("train", "validation"))
            if len(held_out):
                ngram_losses = compute_ngram_losses(split, held_out, vocab_size=corpus.tokenizer.vocab_size)
                tokens_per_byte = len(held_out) / held_out.bytes
        if parent is not None:
            initial = measure_initial_loss(config, initial_weights(parent, tokenizers, config), data)
            losses = (initial, load_state(parent).best_loss, min(ngram_losses, default=None))
            measured = dataclasses.replace(measured, losses=losses)
        if budget is None:
            return measured
        seconds = _measuring_seconds(config, _MAX_MEASURE_SECONDS)
        if self.world.size > 1:  # of which each has a part of a batch
            part = -(-data.batch(0).rows // self.world.size)
            own = config.training.replace(micro_batch_size=min(part, config.training.micro_batch_size or part))
            config = config.replace(training=own)
        speed = self.speed_meter.measure_training_speed(config, data, tokenizers, seconds=seconds)
        counts_tokens = is_regularised and is_text
        return dataclasses.replace(
            measured,
            speed=speed.scaled_to(self.world.size),
            seconds_left=parse_duration(budget) - self.elapsed(),
            ngram_bits=tuple(loss / math.log(2) * tokens_per_byte for loss in ngram_losses) if counts_tokens else (),
            train_tokens=len(open_split(corpus.folder, "train")) if counts_tokens else 0,
        )


def _find_teachers(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(str(find_checkpoint(Path(name)).resolve()) for name in names)


def _measuring_seconds(config: RunConfig, limit: float) -> float:
    """Return for how long to time steps, at most `limit`."""
    budget = config.training.budget
    return limit if budget is None else min(limit, _MEASURE_FRACTION * parse_duration(budget))


def _create_folder(corpus: str, preset: str) -> Path:
    """Create the folder of a new run under runs/, named after corpus and preset; another one for each run."""
    stem = "stdin" if corpus == "-" else Path(corpus).stem
    stem = re.sub(r"[^\w.-]", "-", stem).strip("-.") or "run"
    for number in itertools.count(1):
        folder = RUNS / (f"{stem}-{preset}" + (f"-{number}" if number > 1 else ""))
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise AssertionError
