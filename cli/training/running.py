"""Running `lm train`: what is reported before, in and after training, and signals."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import typer

from cli.console.progress import show_bytes
from cli.console.text import (
    format_bytes,
    format_count,
    format_duration,
    format_json_line,
    format_perplexity,
    format_trainable,
    print_labelled,
    print_note,
    print_notes,
    quote,
)
from cli.new_runs import record_decoding_dtype, warn_of_repetition
from cli.plan_report import plan_rows, print_plan
from cli.training.display import TrainingDisplay
from cli.training.tensorboard import open_recorder
from lm.config.run_spec import RunSpec
from lm.distributed import launcher_env
from lm.engine.compiled.build import compiling_in_child
from lm.engine.selection import needs_compiling
from lm.hardware import measure_matmul_flops, peak_memory
from lm.model.cost import total_parameters
from lm.model.lora import trainable_weights
from lm.model.transformer import count_parameters
from lm.signals import StopSignals
from lm.text.records import parse_label
from lm.training.events import TrainingWarning
from lm.training.measure import SpeedMeter
from lm.training.planning.hardware import training_state_bytes
from lm.training.planning.plan import Plan, probe_config
from lm.training.run import Run, batch_flops
from lm.training.run_summaries import best_accuracy, best_score, has_improved
from lm.training.trainer import Event, Planned, Started, Trainer
from lm.training.training_corpus import CorpusPrepared

Observer = Callable[[Event], None]

_SHOWN_LABELS = 12
_MIN_COMPILING_SECONDS = 120.0
"""Seconds of a budget from which a child process compiles the decode step."""
_SECONDS_TO_MEASURE = 1.5
_PROCESS_BYTES = 3.5e8
"""Bytes of a process that has imported torch."""


def run_training(spec: RunSpec, *, started_at: float, as_json: bool, dry_run: bool) -> None:
    """Train the run of a specification until its end or a signal; or only plan it.

    After a signal, typer.Exit is raised with 128 + its number.
    """
    start_time = started_at if (launch_time := launcher_env.start_time()) is None else launch_time
    with Trainer(spec, start_time=start_time, progress=show_bytes) as trainer:
        is_main, is_single = trainer.world.is_main, trainer.world.size == 1
        for event in trainer:
            if is_main:
                _report(event)
            if dry_run and isinstance(event, Planned):
                _report_costs(event)
                return
            if isinstance(event, Started):
                break
        run = trainer.run
        assert run is not None
        with StopSignals(on_first=_announce_stop if is_single else lambda: None) as signals:
            trainer.stop = signals.received
            no_observers: list[Observer] = []
            with _observers(run) if is_main else nullcontext(no_observers) as observers:
                for event in trainer:
                    for observe in [*observers]:
                        try:
                            observe(event)
                        except OSError:  # as on a full disk; training continues without
                            observers.remove(observe)
            number = trainer.world.all_reduce_max(signals.number)
    if is_main and run.state.finished:
        _report_results(run)
    elif is_main:
        print_labelled("stopped", f"at step {run.state.step:,}, saved")
        print_note(f"next    lm train --resume {quote(run.folder)}")
    if as_json and is_main:
        state = run.state
        summary = {
            "run": str(run.folder), "steps": state.step, "finished": state.finished, "tokens": state.tokens,
            "best_loss": state.best_loss, "best_bleu": state.best_bleu, "best_step": state.best_step,
            "last_loss": run.last_validation_loss, "improved": has_improved(run.config, state),
            "seconds": state.training_seconds, "flops": state.flops,
        }  # fmt: skip
        print(format_json_line(summary))
    if number and not run.state.finished:
        raise typer.Exit(128 + number)


def _announce_stop() -> None:
    print("stopping after this step; once more to stop at once, without saving", file=sys.stderr)


@contextlib.contextmanager
def _observers(run: Run) -> Iterator[list[Observer]]:
    """Yield what events of training are passed to: the display, and TensorBoard if asked."""
    display = TrainingDisplay(run, matmul_flops_per_second=run.world.size * measure_matmul_flops(run.hardware))
    is_long = run.clock is not None and run.seconds_to_end() >= _MIN_COMPILING_SECONDS
    with contextlib.ExitStack() as stack:
        if is_long and needs_compiling(run.config.model, run.hardware.device):
            stack.enter_context(compiling_in_child())
        observers: list[Observer] = [stack.enter_context(display).show]
        if run.config.training.tensorboard:
            observers.append(stack.enter_context(open_recorder(run.folder, first_step=run.state.step + 1)))
        yield observers


def _report(event: Event) -> None:
    """Report an event before the first step."""
    if isinstance(event, TrainingWarning):
        print_labelled("warning", event.message)
    elif isinstance(event, CorpusPrepared):
        _report_corpus(event)
    elif isinstance(event, Planned):
        _print_plan(event.plan)
    elif isinstance(event, Started) and event.is_resumed:
        run = event.run
        print_note(f"resume  {run.folder} at step {run.state.step:,} of {run.plan.steps:,}")
        if run.plan.extended_at == run.state.step:
            _print_plan(Plan(run.config, run.log.reasons()))
    elif isinstance(event, Started):
        run = event.run
        if run.config.lora:
            trained = sum(value.numel() for value in trainable_weights(run.model).values())
            size = format_trainable(trained, count_parameters(run.model))
            print_labelled("lora", f"rank {run.config.lora.rank} on {' and '.join(run.config.lora.kinds)}: {size}")
        print_note(f"run     {run.folder}")


def _print_plan(plan: Plan) -> None:
    print_plan(plan_rows(plan.config, total_parameters(plan.config.model), plan.reasons), print_note)


def _report_corpus(event: CorpusPrepared) -> None:
    """Report the sizes of both splits, what was left out, and the examples per label."""
    print_notes(event.notes)
    manifest, corpus = event.manifest, event.corpus
    train, held_out = manifest.splits["train"], manifest.splits["validation"]
    if event.reused is not None:
        print_note(f"tokens  {corpus.folder}{' (made before)' if event.reused else ''}")
    unit = {"text": "tokens", "examples": "examples", "conversations": "conversations", "pairs": "pairs"}[manifest.kind]
    sizes = [split.tokens if manifest.kind == "text" else split.documents for split in (train, held_out)]
    vocabulary = f"vocabulary {corpus.tokenizer.vocab_size:,}"
    if corpus.source_tokenizer is not None:
        vocabulary = f"vocabularies {corpus.source_tokenizer.vocab_size:,} and {corpus.tokenizer.vocab_size:,}"
    parts = f"{format_count(sizes[0])} {unit} to train on, {format_count(sizes[1])} held out"
    text = f", {train.bytes / max(1, train.tokens):.2f} bytes/token" if manifest.kind == "text" else ""
    print_labelled("corpus", f"{format_bytes(train.bytes + held_out.bytes)}, {vocabulary}: {parts}{text}")
    if left_out := train.left_out + held_out.left_out:
        reason = "blank, too long (parallel.max_length) or of unequal lengths (parallel.max_ratio)"
        print_labelled("", f"left out: {left_out:,} {reason}")
    if corpus.label_completions:
        shown = [*map(parse_label, corpus.label_completions)]
        more = f" and {len(shown) - _SHOWN_LABELS:,} more" if len(shown) > _SHOWN_LABELS else ""
        print_labelled("labels", f"{len(shown):,}: {', '.join(shown[:_SHOWN_LABELS])}{more}")
    warn_of_repetition(manifest)


def _report_costs(event: Planned) -> None:
    """Report the estimated time of a plan's steps, and the memory that it needs besides activations."""
    config, plan, data = event.plan.config, event.plan.config.plan, event.data
    assert plan is not None
    if config.training.budget is None:
        probe = probe_config(event.plan, pairs=data.holds_pairs)
        rate = SpeedMeter().measure_flop_rate(probe, seconds=_SECONDS_TO_MEASURE)
        print_labelled("time", f"about {format_duration(plan.steps * batch_flops(config, data.batch(0)) / rate)}")
    print_labelled("memory", f"{format_bytes(_PROCESS_BYTES + training_state_bytes(config))} and activations")


def _report_results(run: Run) -> None:
    """Print the results of a finished run, and next commands."""
    state, model = run.state, run.config.model
    took = format_duration(state.training_seconds)
    print_labelled("done", f"{took} of training in all, peak memory {format_bytes(peak_memory())}")
    if state.best_loss is not None:
        accuracy, bits = (
            best_accuracy(run.folder, run.config, state),
            best_score(run.folder, state, "validation_bits_per_byte"),
        )
        scores = [f"validation loss {state.best_loss:.4f}"]
        scores += (
            [f"perplexity {format_perplexity(state.best_loss)}"] if accuracy is None else [f"accuracy {accuracy:.1%}"]
        )
        scores += [] if bits is None else [f"{bits:.3f} bits/byte"]
        scores += [f"BLEU {state.best_bleu:.1f}"] if state.best_bleu else []
        print_labelled("best", f"{', '.join(scores)}, at step {state.best_step:,} of {state.step:,}")
        if not has_improved(run.config, state):
            print_labelled("", "no improvement: no later step was better than what training began with")
    record_decoding_dtype(run.folder, dataclasses.replace(run.config.hardware, dtype="auto"))
    folder = quote(run.folder)
    if model.translates:
        commands = [f"lm translate {folder} < FILE", f"lm evaluate {folder} --source FILE --target FILE"]
    elif run.config.is_classifier:
        commands = [f"lm classify {folder} FILE", f"lm evaluate {folder} FILE"]
    elif model.is_masked:
        commands = [f'lm fill {folder} "... [MASK] ..."', f"lm train FILE --label-column label --from {folder}"]
    else:
        use = f"lm chat {folder}" if run.data.holds_conversations else f'lm generate {folder} "..."'
        commands = [use, f"lm perplexity {folder} FILE"]
    for index, command in enumerate((*commands, f"lm info {folder}")):
        print_note(f"{'' if index else 'next':<8}{command}")
