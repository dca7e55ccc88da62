"""The Trainer: plans and creates a run, or prepares to resume one; then opens and trains it."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from lm.adapter_base import refuse_adapters, with_base_hash
from lm.config.model import check_heads_given
from lm.config.presets import DEFAULT_PRESET, build_run_config
from lm.config.run_config import CHANGEABLE_ON_RESUME, SECTIONS, RunConfig
from lm.config.run_spec import RunSpec, refuse_settings
from lm.config.settings import LENGTHS, check_requirements
from lm.config.training import parse_duration
from lm.corpus.store import Manifest, open_split
from lm.data.batch import TrainingData
from lm.distributed import launcher_env
from lm.distributed.parallel import SINGLE_PROCESS, World, init_distributed
from lm.errors import UsageError
from lm.evaluation.held_out import describe_seen_held_out
from lm.evaluation.ngram import compute_ngram_losses
from lm.hardware import select_device
from lm.run_folder import (
    RUNS,
    contains_runs,
    describe_parent,
    find_checkpoint,
    is_checkpoint,
    list_checkpoints,
    load_config,
    load_state,
    refuse_existing,
)
from lm.training import events
from lm.training.initial_weights import check_tokenizers, initial_weights, measure_initial_loss
from lm.training.loop import train
from lm.training.measure import SpeedMeter
from lm.training.planning.budget import check_startup
from lm.training.planning.hardware import select_training_hardware
from lm.training.planning.plan import (
    Measured,
    Plan,
    Survey,
    add_run_plan,
    plan_corpus,
    plan_length,
    plan_model,
    plan_spec,
    probe_config,
    should_choose_size,
    should_choose_time,
)
from lm.training.run import Run, copy_checkpoint, prepare_resuming
from lm.training.run_summaries import find_unfinished
from lm.training.training_corpus import (
    CorpusFiles,
    CorpusPrepared,
    ProgressCallback,
    TrainingCorpus,
    check_model_fits_data,
    no_progress,
    open_data,
)

_MEASURE_SECONDS, _MEASURE_FRACTION = 1.5, 0.01  # and of the budget


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
    is_resumed: bool = False


Event = CorpusPrepared | Planned | Started | events.Event


@dataclass(frozen=True)
class _Start:
    """What every rank needs to open the run: its folder, and of a budget the seconds spent and of an evaluation."""

    folder: Path
    spent: float
    evaluation_seconds: float = 0.0
    is_resumed: bool = True


class Trainer:
    """Trains the run of a specification: a context manager, and an iterator of events.

        with Trainer(spec) as trainer:
            for event in trainer:
                ...

    Preparation, start or resumption, steps, evaluations and checkpoints are events. A run whose loop is left early is
    saved, unless several processes train it; `RunSpec(resume=...)` continues it. Each rank iterates over a trainer of
    its own, and rank 0 prepares the run.

    Attributes:
        run: the run, once it has started.
        world: the ranks, while the trainer is open.
        stop: called once per step on each rank; if one returns True, the run is saved and training ends.
    """

    def __init__(
        self,
        spec: RunSpec,
        *,
        stop: Callable[[], bool] = lambda: False,
        progress: ProgressCallback = no_progress,
        start_time: float | None = None,
        clock: Callable[[], float] | None = None,
        speed_meter: SpeedMeter | None = None,
    ) -> None:
        """Create a trainer; nothing is done yet.

        Args:
            progress: of tokenisation.
            start_time: start of a budget, on the clock [default: now].
            clock: in seconds, for budgets [default: `time.monotonic`].
            speed_meter: measures training speed for budgets.
        """
        self.spec, self.stop = spec, stop
        self.run: Run | None = None
        self.world: World = SINGLE_PROCESS
        self._progress, self._clock, self._speed_meter = progress, clock or time.monotonic, speed_meter or SpeedMeter()
        self._began = self._clock() if start_time is None else start_time
        self._stack, self._saves_when_left = ExitStack(), True
        self._events: Generator[Event, None, None] | None = None
        self._data: TrainingData | None = None

    def __repr__(self) -> str:
        return f"<Trainer of {self.run or self.spec.resume or self.spec.data.names[0]}>"

    def __enter__(self) -> Self:
        """Join the process group; UsageError if the other processes have not been started."""
        self.world = self._stack.enter_context(init_distributed())
        if self.spec.processes > 1 and self.world.size == 1:
            raise UsageError("a trainer trains in this process, and `lm.train` starts several")
        self._saves_when_left = self.world.size == 1  # saving is collective
        self._events = self._generate_events()
        self._stack.callback(self._events.close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Save a run whose loop was left early, unless on SystemExit, and close it."""
        if kind is not None and issubclass(kind, SystemExit):
            self._saves_when_left = False
        self._stack.__exit__(kind, error, trace)

    def __iter__(self) -> Iterator[Event]:
        """Iterate over all events; opens the trainer if it isn't open.

        Raises:
            InputError: a file is wrong, the folder holds a run, or there is no run to resume.
            UsageError: settings don't fit together, or don't fit the files.
            TrainingError: a loss or a weight is no longer finite; checkpoints are untouched.
        """
        return self._iterate_open() if self._events is None else self._events

    def _iterate_open(self) -> Iterator[Event]:
        with self:
            yield from self

    def _generate_events(self) -> Generator[Event, None, None]:
        is_restarted = self.world.all_reduce_max(launcher_env.restart_count()) > 0
        start = (yield from self._prepare(is_restarted=is_restarted)) if self.world.is_main else None
        start = self.world.broadcast(start)
        run = self.run = Run.open(
            start.folder,
            self.world,
            from_run=None if self.spec.from_run is None else Path(self.spec.from_run),
            data=self._data,
            spent=start.spent,
            evaluation_seconds=start.evaluation_seconds,
            clock=self._clock,
        )
        yield Started(run, is_resumed=start.is_resumed)
        yield from train(run, stop=self.stop, saves_when_left=lambda: self._saves_when_left)

    def _prepare(self, *, is_restarted: bool) -> Generator[Event, None, _Start]:
        """Write the folder of a new run, or how another one continues; on rank 0."""
        spec, out = self.spec, None if self.spec.out is None else Path(self.spec.out)
        if is_restarted and out is None and spec.resume is None:
            raise UsageError("where processes may be restarted, name the folder of the run")
        if is_restarted and out is not None and list_checkpoints(out):
            prepare_resuming(out, processes=self.world.size)
            return _Start(out, self._elapsed())
        if spec.resume is None:
            return (yield from self._start(spec, out))
        run = Path(spec.resume)
        if is_checkpoint(run) and out is not None:
            copy_checkpoint(run, out)
            run = out
        elif is_checkpoint(run) or out is not None:
            raise UsageError("to continue from a checkpoint, name it and the folder of a new run (out)")
        elif contains_runs(run) or (run == RUNS and not run.exists()):
            run = find_unfinished(run)
        data = None
        if spec.data:
            last = find_checkpoint(run, which="last")
            data = (yield from CorpusFiles(spec.data).prepare(load_config(last), last, self._progress)).folder
        lengths = {name: value for name, value in spec.typed("training").items() if name in LENGTHS}
        check_startup(lengths.get("budget"), self._elapsed())
        prepare_resuming(
            run,
            length=build_run_config(DEFAULT_PRESET, {"training": lengths}).training if lengths else None,
            changed={
                section: {name: value for name, value in spec.typed(section).items() if name in names}
                for section, names in CHANGEABLE_ON_RESUME.items()
            },
            data=data,
            spent=self._elapsed(),
            processes=self.world.size,
        )
        return _Start(run, self._elapsed())

    def _start(self, spec: RunSpec, out: Path | None) -> Generator[Event, None, _Start]:  # noqa: PLR0915 (one story)
        """Plan a new run: survey, plan the model, prepare the corpus, measure, plan the length; and create it."""
        files = CorpusFiles(spec.data)
        spec = spec.replace(kind=files.detect_kind(spec))
        parent = None if spec.from_run is None else find_checkpoint(Path(spec.from_run))
        plan = plan_spec(spec, parent=None if parent is None else load_config(parent))
        needs_speed = should_choose_size(spec) or should_choose_time(spec)
        check_requirements(SECTIONS, spec.settings, plan.known_values(is_open=needs_speed))
        if files.prepared:
            refuse_settings("tokenizer", spec.typed("tokenizer"), beside="prepared tokens")
        if out is not None:  # before anything is measured or prepared
            refuse_existing(out, can_resume=True)
        if needs_speed:
            check_startup(plan.config.training.budget, self._elapsed())
            survey = Survey(
                files.text_bytes(plan.config),
                pairs=files.holds_pairs,
                is_prepared=files.prepared is not None,
                has_tokenizer=files.prepared is not None or spec.tokenizer is not None,
            )
            if not files.prepared:
                files.survey(plan.config)  # which raises the errors of files before anything is measured
            rate = 1.0  # of an empty corpus, which preparing it refuses
            if survey.text_bytes:
                probe, seconds = probe_config(plan, pairs=survey.pairs), _measuring_seconds(plan.config)
                rate = self.world.size * self._speed_meter.measure_flop_rate(probe, seconds=seconds)
            plan = plan_model(plan, spec, survey, flops_per_second=rate, elapsed=self._elapsed())
        if not files.holds_pairs:
            made_with = files.data_config(plan.config.data, typed=spec.typed("data"))
            plan = plan.replace_config("prepared corpus", dataclasses.replace(plan.config, data=made_with))
        _check_early(spec, plan.config, parent)
        named = spec.tokenizer or spec.from_run
        corpus = yield from files.prepare(plan.config, Path(named) if named else None, self._progress)
        if spec.typed("parallel").get("bpe_dropout") and not corpus.has_merges:
            raise UsageError("BPE dropout leaves out merges, and a tokenizer has none")
        if parent is not None:
            check_tokenizers(parent, corpus.tokenizer, corpus.source_tokenizer)
            spare = max(0, load_config(parent).model.vocab_size - corpus.tokenizer.vocab_size)
            corpus = dataclasses.replace(corpus, spare_tokens=spare)
            problem = describe_seen_held_out(Path(str(spec.from_run)), corpus.folder)
            if problem is not None:
                yield events.TrainingWarning(0, problem)
        plan = plan_corpus(plan, corpus)
        data = open_data(corpus.folder, plan.config)
        before, measured = plan.config, self._measure(plan, corpus, data, parent)
        plan, speed, max_steps = plan_length(plan, corpus, data, measured)
        if (plan.config.training.batch_tokens, plan.config.parallel) != (before.training.batch_tokens, before.parallel):
            data = open_data(corpus.folder, plan.config)
        check_startup(plan.config.training.budget, self._elapsed())
        origin = None if parent is None else describe_parent(parent)
        config = dataclasses.replace(plan.config, origin=origin)
        if parent is not None and config.lora:
            config = with_base_hash(config, parent)
        micro_batch = config.training.micro_batch_size
        hardware = speed.hardware if speed else select_training_hardware(config, next(data.batch(0).split(micro_batch)))
        plan = add_run_plan(
            dataclasses.replace(plan, config=config),
            corpus,
            data,
            hardware,
            data_key=Manifest.read(corpus.folder).key,
            processes=self.world.size,
            step_seconds=speed.step_seconds if speed else 1.0,
            spent=self._elapsed(),
            max_steps=max_steps,
        )
        yield Planned(plan, corpus, data)
        self._data = data
        folder = out or _create_folder(spec.data.names[0], str(config.preset))
        Run.create(folder, plan, base=parent if config.lora else None)
        return _Start(folder, self._elapsed(), speed.evaluation_seconds if speed else 0.0, is_resumed=False)

    def _measure(self, plan: Plan, corpus: TrainingCorpus, data: TrainingData, parent: Path | None) -> Measured:
        """Measure what the length of the run is planned from."""
        config, measured = plan.config, Measured()
        is_text = config.data_kind == "text" and not config.model.is_masked
        is_regularised = plan.is_regularised and config.training.budget is not None
        ngram_losses, tokens_per_byte = list[float](), 0.0
        # a few characters or bytes are too short to tell anything
        if is_text and (parent is not None or is_regularised) and corpus.tokenizer.kind == "bpe":
            split, held_out = (open_split(corpus.folder, name) for name in ("train", "validation"))
            if len(held_out):
                ngram_losses = compute_ngram_losses(split, held_out, vocab_size=corpus.tokenizer.vocab_size)
                tokens_per_byte = len(held_out) / held_out.bytes
        if parent is not None:
            initial = measure_initial_loss(config, initial_weights(parent, corpus.tokenizer, config), data)
            losses = (initial, load_state(parent).best_loss, min(ngram_losses, default=None))
            measured = dataclasses.replace(measured, losses=losses)
        if config.training.budget is None:
            return measured
        speed = self._speed_meter.measure_training_speed(
            config, data, (corpus.tokenizer, corpus.source_tokenizer), seconds=_measuring_seconds(config)
        )
        check_startup(config.training.budget, self._elapsed())
        counts_tokens = is_regularised and (is_text or data.holds_conversations)
        return dataclasses.replace(
            measured,
            speed=speed.scaled_to(self.world.size),
            seconds_left=parse_duration(config.training.budget) - self._elapsed(),
            ngram_bits=tuple(loss / math.log(2) * tokens_per_byte for loss in ngram_losses) if counts_tokens else (),
            train_tokens=len(open_split(corpus.folder, "train")) if counts_tokens else 0,
        )

    def _elapsed(self) -> float:
        return self._clock() - self._began


def _check_early(spec: RunSpec, config: RunConfig, parent: Path | None) -> None:
    """Raise errors that would otherwise occur only after the corpus is prepared."""
    select_device(config.hardware)
    check_model_fits_data(config.model, pairs=spec.data.are_pairs)
    check_heads_given(config.model, are_given=bool(spec.data.heads))
    if config.lora:
        if parent is None:
            raise UsageError("adapters need the weights of a run: name it, or leave them out")
        refuse_adapters(parent)


def _measuring_seconds(config: RunConfig) -> float:
    """Return for how long to time steps."""
    budget = config.training.budget
    return _MEASURE_SECONDS if budget is None else min(_MEASURE_SECONDS, _MEASURE_FRACTION * parse_duration(budget))


def _create_folder(corpus: str, preset: str) -> Path:
    """Create the folder of a new run under runs/, named after corpus and preset; another one for each trainer."""
    stem = Path(corpus).stem if corpus != "-" else "stdin"
    stem = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in stem).strip("-.") or "run"
    for number in itertools.count(1):
        folder = RUNS / (f"{stem}-{preset}" + (f"-{number}" if number > 1 else ""))
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise AssertionError
