"""The Trainer: prepares, starts or resumes the run of a specification, trains, evaluates and saves."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lm.adapter_base import refuse_adapters
from lm.checkpoint import load_weights
from lm.config.model import check_heads_given
from lm.config.presets import DEFAULT_PRESET, build_run_config
from lm.config.run_config import CHANGEABLE_ON_RESUME, SECTIONS, RunConfig
from lm.config.run_spec import RunSpec, refuse_settings
from lm.config.settings import LENGTHS, check_requirements
from lm.config.training import parse_duration
from lm.corpus.store import list_changed_sources, open_split
from lm.corpus.survey import read_beginnings
from lm.data.training_data import TrainingData
from lm.distributed import launcher_env
from lm.distributed.process_group import init_distributed
from lm.distributed.world import SINGLE_PROCESS, World
from lm.errors import InputError, UsageError, list_some
from lm.evaluation.contamination import describe_seen_held_out
from lm.evaluation.ngram_baseline import compute_ngram_losses
from lm.files import check_folder
from lm.hardware import select_device
from lm.run_folder import (
    RUNS,
    contains_runs,
    describe_parent,
    find_checkpoint,
    find_missing_last,
    find_run,
    is_run,
    list_checkpoints,
    load_config,
    load_state,
    refuse_existing,
)
from lm.training import events, step_timing
from lm.training.initial_weights import (
    add_token_rows,
    check_compatible,
    check_tokenizers,
    count_spare_tokens,
    describe_poor_fit,
    measure_initial_loss,
)
from lm.training.loop import train
from lm.training.planning import bpe_merges, continued_training, resolve
from lm.training.planning.budget import TrainingSpeed, check_startup
from lm.training.planning.continued_training import ContinuedTrainingChosen
from lm.training.planning.resolve import BudgetForecast, Resolution
from lm.training.run import Run, refuse_if_training
from lm.training.run_summaries import find_unfinished
from lm.training.startup import join_run, plan_run, resume_run, start_planned_run
from lm.training.training_corpus import (
    CorpusPrepared,
    PairCorpus,
    ProgressCallback,
    TextCorpus,
    TokenizerSampling,
    TrainingCorpus,
    check_model_fits_data,
    load_named_tokenizers,
    no_progress,
    open_corpus,
    open_data,
)

_EMPTY_CORPUS_RATE = 1.0
_ADJUSTABLE = frozenset({"evaluate_every", "weight_decay"})
_MEASURE_SECONDS, _MEASURE_FRACTION = 1.5, 0.01
_MAX_NAMED = 3
_PREPARE_SECONDS_PER_BYTE = 1e-6  # seconds per byte of text


@dataclass(frozen=True)
class Planned:
    """Event: a new run is planned, but not created yet.

    Attributes:
        reasons: of each setting, by names such as "training.steps".
        forecast: what a budget is enough for, if there is one.
        spent: seconds of the budget used before.
    """

    config: RunConfig
    reasons: Mapping[str, str]
    corpus: TrainingCorpus
    data: TrainingData
    forecast: BudgetForecast | None
    spent: float


@dataclass(frozen=True)
class Started:
    """Event: a run has been created or resumed; training events follow.

    Attributes:
        is_tuned: whether it starts from the weights of another run.
        is_resumed: whether it continues from its own checkpoint.
        lost: last checkpoint of a resumed run, if it is missing.
        other_length: length settings in the run folder that differ from the checkpoint's.
    """

    run: Run
    is_tuned: bool = False
    is_resumed: bool = False
    lost: str | None = None
    other_length: Mapping[str, Any] = field(default_factory=dict)


Event = TokenizerSampling | CorpusPrepared | ContinuedTrainingChosen | Planned | Started | events.Event
_TrainingEvents = Generator[Event, None, Run]


class SpeedMeter:
    """Measures training speed for budgets. Tests pass a subclass with fixed results."""

    def measure_flop_rate(self, config: RunConfig, *, seconds: float) -> float:
        """Return the FLOP/s of training on random tokens, measured for about `seconds`."""
        return step_timing.measure_flop_rate(config, seconds=seconds)

    def measure_training_speed(
        self, config: RunConfig, corpus: TrainingCorpus, data: TrainingData, *, seconds: float
    ) -> TrainingSpeed:
        """Return the speed of steps and evaluations on the run's data; see `step_timing.measure_training_speed`."""
        return step_timing.measure_training_speed(config, corpus, data, seconds=seconds)


class SpeedEstimator(SpeedMeter):
    """Estimates training speed without building a large model, for plans that are only shown."""

    def measure_training_speed(
        self, config: RunConfig, corpus: TrainingCorpus, data: TrainingData, *, seconds: float
    ) -> TrainingSpeed:
        """Return the estimated speed; see `step_timing.estimate_speed`."""
        return step_timing.estimate_speed(config, corpus, data, seconds=seconds)


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
        forecast: what the budget is enough for, if one was planned.
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
        self.forecast: BudgetForecast | None = None
        self.world: World = SINGLE_PROCESS
        self._progress, self._clock, self._speed_meter = progress, clock, speed_meter or SpeedMeter()
        self._began = self._now() if start_time is None else start_time
        self._stack, self._events, self._saves_when_left = ExitStack(), None, True

    _events: Generator[Event, None, None] | None

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
        if self._events is not None:
            return self._events
        return self._iterate_open()

    def _iterate_open(self) -> Iterator[Event]:
        with self:
            yield from self

    def _now(self) -> float:
        return time.monotonic() if self._clock is None else self._clock()

    def _seconds_elapsed(self) -> float:
        return self._now() - self._began

    def _generate_events(self) -> Generator[Event, None, None]:
        is_restarted = self.world.all_reduce_max(launcher_env.restart_count()) > 0
        if not self.world.is_main:
            run = join_run(self.world)
            yield Started(run)
        elif self.spec.resume is not None:
            run = yield from self._resume(Path(self.spec.resume))
        elif (restarted := self._find_restarted_run(is_restarted=is_restarted)) is not None:
            run = resume_run(restarted, spent=self._seconds_elapsed(), world=self.world, clock=self._clock)
            self.run = run
            yield Started(run, is_resumed=True, lost=find_missing_last(run.folder))
        else:
            run = yield from self._start()
        self.run = run
        yield from train(run, stop=self.stop, saves_when_left=lambda: self._saves_when_left)

    def _find_restarted_run(self, *, is_restarted: bool) -> Path | None:
        """Return the run that these processes had saved before the launcher restarted them.

        Raises:
            UsageError: the launcher may restart them, but the run has no fixed folder.
        """
        if launcher_env.can_restart() and self.spec.out is None:
            raise UsageError("where processes may be restarted, name the folder of the run")
        if not is_restarted or self.spec.out is None:
            return None
        out = Path(self.spec.out)
        return out if is_run(out) and list_checkpoints(out) else None

    def _resume(self, path: Path) -> _TrainingEvents:
        """Resume a run; only its length and hardware settings can be changed."""
        if contains_runs(path) or (path == RUNS and not path.exists()):
            path = find_unfinished(path)
        data = None
        if self.spec.data:
            checkpoint = find_checkpoint(path, which="last")
            corpus = open_corpus(self.spec.data)
            data = (yield from corpus.prepare(load_config(checkpoint), checkpoint, self._progress)).folder
        lengths = {name: value for name, value in self.spec.typed("training").items() if name in LENGTHS}
        written = {} if lengths else _saved_length(path)
        check_startup(lengths.get("budget"), self._seconds_elapsed())
        run = resume_run(
            path,
            data=data,
            new_length=build_run_config(DEFAULT_PRESET, {"training": lengths}).training if lengths else None,
            changed={
                section: {name: value for name, value in self.spec.typed(section).items() if name in names}
                for section, names in CHANGEABLE_ON_RESUME.items()
            },
            spent=self._seconds_elapsed(),
            world=self.world,
            clock=self._clock,
        )
        if not self.spec.data:
            yield from _check_sources(run)
        other_length = written if written != _length_settings(run.config) else {}
        yield Started(run, is_resumed=True, lost=find_missing_last(run.folder), other_length=other_length)
        return run

    def _start(self) -> _TrainingEvents:
        """Start a new run: choose its settings, prepare its corpus, and write its plan."""
        corpus = open_corpus(self.spec.data)
        spec = dataclasses.replace(self.spec, kind=corpus.detect_kind(self.spec))
        from_run = None if spec.from_run is None else Path(spec.from_run)
        parent = None if from_run is None else load_config(find_checkpoint(from_run))
        chosen = resolve.resolve_spec(spec, base=None if parent is None else parent.model)
        if parent is not None:
            chosen = continued_training.inherit_optimizer(parent, chosen, spec)
        needs_size, needs_time = resolve.should_choose_size(spec), resolve.should_choose_time(spec)
        _check_given(spec, corpus, chosen.known_values(is_open=needs_size or needs_time))
        if spec.out is not None:  # before anything is measured or prepared
            refuse_existing(Path(spec.out), can_resume=True)
        if needs_size or needs_time:
            chosen = self._choose_size(chosen, corpus, needs_size=needs_size)
        if isinstance(corpus, TextCorpus):
            made_with = corpus.data_config(chosen.config.data, typed=spec.typed("data"))
            chosen = chosen.replace_config("prepared corpus", dataclasses.replace(chosen.config, data=made_with))
        with _new_folder(spec, str(chosen.config.preset)) as folder:
            self._check_early(folder, chosen.config)
            if (
                isinstance(corpus, TextCorpus)
                and not corpus.prepared
                and resolve.should_choose_merges(spec, chosen.config)
            ):
                sample = read_beginnings(corpus.survey(chosen.config), limit=bpe_merges.SAMPLE_BYTES)
                measured = bpe_merges.measure_merge_baselines(sample, chosen.config.tokenizer)
                chosen = chosen if measured is None else chosen.choose(measured.reason, measured.settings())
            named = spec.tokenizer or spec.from_run
            prepared = yield from corpus.prepare(chosen.config, Path(named) if named else None, self._progress)
            yield from _check_merges(prepared, spec, chosen)
            weights = adapted = None
            if from_run is not None:
                weights = add_token_rows(from_run, load_weights(from_run), prepared.tokenizer, chosen.config)
                prepared = dataclasses.replace(prepared, spare_tokens=count_spare_tokens(from_run, prepared.tokenizer))
                adapted = find_checkpoint(from_run) if chosen.config.lora else None
            chosen = chosen.replace_config("corpus", resolve.fit_to_corpus(chosen.config, prepared))
            data, speed = open_data(prepared.folder, chosen.config), None
            if from_run is not None and weights is not None:
                yield from _check_parent(from_run, prepared)
                ngram_losses, _ = _measure_ngram_baselines(chosen.config, prepared)
                chosen, continued = continued_training.choose_continued_training(
                    chosen,
                    data,
                    ngram_loss=min(ngram_losses, default=None),
                    parent_loss=load_state(find_checkpoint(from_run)).best_loss,
                    initial_loss=measure_initial_loss(chosen.config, weights, data),
                )
                yield continued
            if chosen.config.training.budget is not None:
                chosen, speed, data = self._fit_to_speed(chosen, prepared, data)
            elif from_run is None:
                chosen = resolve.fit_to_steps(chosen, data)
            check_startup(chosen.config.training.budget, self._seconds_elapsed())
            origin = None if from_run is None else describe_parent(from_run)
            planned = plan_run(
                dataclasses.replace(chosen.config, origin=origin),
                prepared,
                data,
                speed=speed,
                spent=self._seconds_elapsed(),
                max_steps=None if self.forecast is None else self.forecast.max_steps,
                world=self.world,
            )
            yield Planned(planned, chosen.reasons, prepared, data, self.forecast, self._seconds_elapsed())
            run = start_planned_run(
                folder,
                planned,
                prepared,
                data=data,
                weights=weights,
                base=adapted,
                speed=speed,
                spent=self._seconds_elapsed(),
                reasons=chosen.reasons,
                adjustable_settings=_ADJUSTABLE - chosen.fixed["training"].keys()
                if chosen.is_regularised
                else frozenset(),
                world=self.world,
                clock=self._clock,
            )
        yield Started(run, is_tuned=from_run is not None)
        return run

    def _choose_size(self, chosen: Resolution, corpus: TextCorpus | PairCorpus, *, needs_size: bool) -> Resolution:
        """Choose the training time, if none is given, and the model size.

        Raises:
            UsageError: the budget is too short.
        """
        pairs, budget = corpus.holds_pairs, chosen.config.training.budget
        if budget is not None:
            self._seconds_left(budget)
        text_bytes = corpus.text_bytes(chosen.config)
        if budget is not None and not corpus.prepared:
            preparing = text_bytes * _PREPARE_SECONDS_PER_BYTE
            takes = f"preparing {text_bytes / 1e6:.3g} MB of text takes about {preparing:.1f} s"
            check_startup(budget, self._seconds_elapsed() + preparing, reason=takes)
        if not corpus.prepared:
            corpus.survey(chosen.config)  # which raises the errors of files before anything is measured
        flops_per_second = _EMPTY_CORPUS_RATE  # of an empty corpus, which preparing it refuses
        if text_bytes:
            probe, seconds = resolve.probe_config(chosen, pairs=pairs), _measuring_seconds(budget)
            flops_per_second = self.world.size * self._speed_meter.measure_flop_rate(probe, seconds=seconds)
        if budget is None:
            chosen = resolve.choose_time(
                chosen,
                flops_per_second=flops_per_second,
                text_bytes=text_bytes,
                pairs=pairs,
                startup_seconds=self._seconds_elapsed(),
            )
        if not needs_size:
            return chosen
        return resolve.choose_size(
            chosen,
            seconds=self._seconds_left(str(chosen.config.training.budget)),
            flops_per_second=flops_per_second,
            text_bytes=text_bytes,
            pairs=pairs,
            is_prepared=corpus.prepared is not None,
            has_tokenizer=corpus.prepared is not None or self.spec.tokenizer is not None,
        )

    def _fit_to_speed(
        self, chosen: Resolution, corpus: TrainingCorpus, data: TrainingData
    ) -> tuple[Resolution, TrainingSpeed, TrainingData]:
        """Measure the training speed, on rank 0 only, and choose what depends on the number of steps."""
        config, budget = chosen.config, str(chosen.config.training.budget)
        speed = self._speed_meter.measure_training_speed(config, corpus, data, seconds=_measuring_seconds(budget))
        seconds_left = self._seconds_left(budget)
        baselines: Sequence[float] = ()
        train_tokens = 0
        if chosen.is_regularised and (data.holds_conversations or _is_plain_text(config)):
            train_tokens = len(open_split(corpus.folder, "train"))
            losses, tokens_per_byte = _measure_ngram_baselines(config, corpus)
            baselines = [loss / math.log(2) * tokens_per_byte for loss in losses]
        chosen, speed, forecast = resolve.fit_to_speed(
            chosen,
            speed.scaled_to(self.world.size),
            data,
            seconds_left=seconds_left,
            has_merges=corpus.has_merges,
            ngram_bits=baselines,
            train_tokens=train_tokens,
        )
        if _make_other_batches(config, chosen.config):
            data = open_data(corpus.folder, chosen.config)
        if chosen.is_regularised and data.holds_pairs:
            forecast = dataclasses.replace(forecast, tokens=forecast.epochs * data.tokens)
        self.forecast = forecast
        return chosen, speed, data

    def _seconds_left(self, budget: str) -> float:
        """Return the seconds left of a budget; UsageError if they are too few (see `check_startup`)."""
        elapsed = self._seconds_elapsed()
        check_startup(budget, elapsed)
        return parse_duration(budget) - elapsed

    def _check_early(self, folder: Path, config: RunConfig) -> None:
        """Raise errors that would otherwise occur only after the corpus is prepared."""
        spec, pairs = self.spec, self.spec.data.are_pairs
        select_device(config.hardware)
        refuse_if_training(folder)
        check_model_fits_data(config.model, pairs=pairs)
        if spec.from_run is not None:
            check_compatible(config.model, Path(spec.from_run))
            if spec.tokenizer is not None:
                check_tokenizers(Path(spec.from_run), *load_named_tokenizers(Path(spec.tokenizer), pairs=pairs))
        if config.lora:
            if spec.from_run is None:
                raise UsageError(
                    "adapters need the weights of a run: name it, or leave them out",
                )
            refuse_adapters(find_checkpoint(Path(spec.from_run)))
        check_heads_given(config.model, are_given=bool(spec.data.heads))


def _check_given(spec: RunSpec, corpus: TextCorpus | PairCorpus, values: Mapping[str, Any]) -> None:
    """Raise UsageError for given settings whose feature is off, or that the corpus decides."""
    check_requirements(SECTIONS, spec.settings, values)
    if corpus.prepared:
        refuse_settings("tokenizer", spec.typed("tokenizer"), beside="prepared tokens")


def _make_other_batches(before: RunConfig, after: RunConfig) -> bool:
    """Whether data that were opened for a config have other batches than another config asks for."""
    sizes = [(config.training.batch_size, config.training.batch_tokens, config.parallel) for config in (before, after)]
    return sizes[0] != sizes[1]


def _check_merges(corpus: TrainingCorpus, spec: RunSpec, chosen: Resolution) -> Iterator[events.TrainingWarning]:
    """Warn if BPE dropout of a preset is not possible; UsageError if it was asked for."""
    if spec.typed("parallel").get("bpe_dropout"):
        corpus.check_merges()
    elif chosen.fixed["parallel"].get("bpe_dropout") and not corpus.has_merges:
        yield events.TrainingWarning(0, "no BPE dropout: a tokenizer has no merges to leave out")


def _check_parent(path: Path, corpus: TrainingCorpus) -> Iterator[events.TrainingWarning]:
    """Warn if a new corpus does not suit the run that training starts from."""
    for problem in (describe_poor_fit(path, corpus), describe_seen_held_out(path, corpus.folder, corpus.tokenizer)):
        if problem is not None:
            yield events.TrainingWarning(0, problem)


def _check_sources(run: Run) -> Iterator[events.TrainingWarning]:
    """Warn if files have changed since the tokens of a resumed run were prepared."""
    if names := list_changed_sources(Path(run.plan.data)):
        text = "changed since this run prepared its tokens, which it still uses; to learn the new text, start a new run"
        advice = f"{list_some(names, limit=_MAX_NAMED)}: {text}"
        yield events.TrainingWarning(run.state.step, advice)


def _is_plain_text(config: RunConfig) -> bool:
    """Whether a decoder is trained on running text."""
    return config.data_kind == "text" and not config.model.is_masked


def _measure_ngram_baselines(config: RunConfig, corpus: TrainingCorpus) -> tuple[list[float], float]:
    """Return the nats per token of n-gram models of order 1, 2, … on a held-out text, and its tokens per byte.

    There are none of other data, and none of characters or bytes: a few of these are too short to tell anything.
    """
    if _is_plain_text(config) and corpus.tokenizer.kind == "bpe":
        split, held_out = (open_split(corpus.folder, name) for name in ("train", "validation"))
        if len(held_out):
            losses = compute_ngram_losses(split, held_out, vocab_size=corpus.tokenizer.vocab_size)
            return losses, len(held_out) / held_out.bytes
    return [], 0.0


def _measuring_seconds(budget: str | None) -> float:
    """Return for how long to time steps."""
    return _MEASURE_SECONDS if budget is None else min(_MEASURE_SECONDS, _MEASURE_FRACTION * parse_duration(budget))


def _length_settings(config: RunConfig) -> dict[str, Any]:
    return {name: value for name in LENGTHS if (value := getattr(config.training, name)) is not None}


def _saved_length(path: Path) -> dict[str, Any]:
    """Return the length settings in the config of a run folder; none if it is missing or damaged."""
    with contextlib.suppress(InputError):
        return _length_settings(load_config(find_run(path)))
    return {}


@contextlib.contextmanager
def _new_folder(spec: RunSpec, preset: str) -> Iterator[Path]:
    """Yield the folder of a new run: given, or created under runs/ and named after corpus and preset.

    Concurrent trainers get different folders; the folder is removed if the block fails.
    """
    if spec.out is not None:
        yield Path(spec.out)
        return
    stem = Path(spec.data.names[0]).stem if spec.data.names[0] != "-" else "stdin"
    stem = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in stem).strip("-.") or "run"
    had_runs = RUNS.exists()
    check_folder(RUNS)
    for number in itertools.count(1):
        folder = RUNS / (f"{stem}-{preset}" + (f"-{number}" if number > 1 else ""))
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            continue
    try:
        yield folder
    except BaseException:
        with contextlib.suppress(OSError):  # it holds something by now
            folder.rmdir()
            if not had_runs:
                RUNS.rmdir()
        raise
