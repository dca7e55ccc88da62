"""Report of `lm train` before the first step: corpus, settings, plan and warnings, on stderr."""

from __future__ import annotations

from cli.console.text import (
    format_bytes,
    format_count,
    format_number_of,
    format_trainable,
    print_labelled,
    print_note,
    print_notes,
)
from cli.new_runs import warn_of_repetition
from cli.training.plan import show_plan
from lm.config.settings import LENGTHS
from lm.corpus.store import Manifest
from lm.data.labels import LabelCounts
from lm.model.lora import trainable_weights
from lm.model.transformer import count_parameters
from lm.run_folder import CONFIG
from lm.training.planning.continued_training import ContinuedTrainingChosen
from lm.training.run import Run
from lm.training.trainer import Event, Planned, Started
from lm.training.training_corpus import CorpusPrepared, TokenizerSampling

_SHOWN_LABELS = 12


def report(event: Event) -> None:
    """Report an event before the first step; ignores others."""
    if isinstance(event, TokenizerSampling):
        print_note(f"tokenizer trained on a sample: {format_bytes(event.bytes)} of {format_bytes(event.corpus_bytes)}")
    elif isinstance(event, CorpusPrepared):
        _report_corpus(event)
    elif isinstance(event, ContinuedTrainingChosen):
        _report_continuation(event)
    elif isinstance(event, Planned):
        show_plan(event)
    elif isinstance(event, Started) and event.is_resumed:
        _report_resumption(event)
    elif isinstance(event, Started):
        describe_run(event.run)


def _report_corpus(event: CorpusPrepared) -> None:
    """Report the sizes of both splits."""
    if event.reused is not None:
        print_notes(event.notes)
        print_note(f"tokens  {event.corpus.folder}{' (made before)' if event.reused else ''}")
    if event.manifest.kind == "pairs":
        _report_pairs(event, event.manifest)
    else:
        _report_text(event, event.manifest)


def _report_text(event: CorpusPrepared, manifest: Manifest) -> None:
    train, held_out, tokenizer = manifest.splits["train"], manifest.splits["validation"], event.corpus.tokenizer
    if manifest.kind == "conversations":
        parts = f"{train.documents:,} conversations to train on, {held_out.documents:,} held out"
    elif manifest.supervised:
        parts = f"{train.documents:,} examples to train on, {held_out.documents:,} held out"
    else:
        parts = f"{format_count(train.tokens)} tokens to train on, {format_count(held_out.tokens)} held out"
        parts += f", {train.bytes_per_token:.2f} bytes/token"
    print_labelled(
        "corpus", f"{format_bytes(train.bytes + held_out.bytes)}, vocabulary {tokenizer.vocab_size:,}: {parts}"
    )
    if event.trained is not None and tokenizer.vocab_size < event.trained:
        print_labelled("", f"(no more pairs occur often enough for a vocabulary of {event.trained:,})")
    if manifest.kind == "conversations":
        print_labelled("", "rows of messages: the loss, and each evaluation, counts the tokens of the assistant alone")
    if event.labels is not None:
        report_labels(event.labels)
    warn_of_repetition(manifest)


def report_labels(counts: LabelCounts) -> None:
    """Report the number of examples per label."""
    total, (majority, fraction) = max(1, sum(counts.train.values())), counts.majority
    shown = [f"{label} {number:,} ({number / total:.1%})" for label, number in counts.train.items()]
    more = f" and {len(shown) - _SHOWN_LABELS:,} more" if len(shown) > _SHOWN_LABELS else ""
    print_labelled("labels", f"{len(shown):,}: {', '.join(shown[:_SHOWN_LABELS])}{more}")
    print_labelled("", f"always {majority!r} would be right for {fraction:.1%} of the examples to train on")
    if unseen := [label for label, number in counts.train.items() if not number]:
        some = ", ".join(map(repr, unseen[:_SHOWN_LABELS]))
        print_labelled("warning", f"no example to train on has the label {some}")


def _report_pairs(event: CorpusPrepared, manifest: Manifest) -> None:
    train, held_out = (manifest.splits[name] for name in ("train", "validation"))
    target, source = event.corpus.tokenizer, event.corpus.source_tokenizer
    vocabulary = f"{target.vocab_size:,}" if source is None else f"{source.vocab_size:,} and {target.vocab_size:,}"
    print_labelled(
        "corpus", f"{train.documents:,} pairs to train on, {held_out.documents:,} held out, vocabulary {vocabulary}"
    )
    reasons = {
        "with a blank side": train.blank + held_out.blank,
        "too long (--max-length)": train.too_long + held_out.too_long,
        "of unequal lengths (parallel.max_ratio)": train.ratio + held_out.ratio,
    }
    if left_out := [f"{number:,} {reason}" for reason, number in reasons.items() if number]:
        print_labelled("", f"left out: {', '.join(left_out)}")
    warn_of_repetition(manifest)


def _report_continuation(event: ContinuedTrainingChosen) -> None:
    """Report the settings chosen for fine-tuning, and the losses they are based on."""
    rate = f"learning rate {event.config.training.learning_rate:.1e}"
    if event.fraction is not None:
        rate += f" ({event.fraction:.1%} of a new model's)"
    losses = ""
    if event.initial_loss is not None:
        losses = f"loss {event.initial_loss:.2f} on this text"
        losses += "" if event.parent_loss is None else f", {event.parent_loss:.2f} on the one it was trained on"
        losses += "" if event.ngram_loss is None else f", {event.ngram_loss:.2f} of an n-gram baseline"
    length = "" if event.steps is None else f", {format_number_of(event.steps, 'step')} ({event.epochs:.1f} epochs)"
    print_labelled("from", f"{losses}{': ' if losses else ''}{rate}{length}")


def _report_resumption(event: Started) -> None:
    """Report where a run continues, and what is lost or differs."""
    run = event.run
    print_note(f"resume  {run.folder} at step {run.state.step:,} of {run.plan.steps:,}")
    if run.plan.extended_at == run.state.step:
        _report_extension(run)
    if event.lost:
        lost = f"what was learned after step {run.state.step:,} is lost"
        print_note(f"        {event.lost}, the last checkpoint, is gone: {lost}")
    if run.stale_checkpoints:
        names = ", ".join(folder.name for folder in run.stale_checkpoints)
        print_note(f"        {names}: of another branch from here on; removed once this one has saved")
    if event.other_length:
        training, length = run.config.training, event.other_length
        flags = " ".join(f"--{name} {value}" for name, value in length.items())
        was = ", ".join(f"{name} {value}" for name in LENGTHS if (value := getattr(training, name)) is not None)
        print_labelled(
            "note", f"{run.folder / CONFIG} had another length than the checkpoint ({was}); to train that long: {flags}"
        )


def _report_extension(run: Run) -> None:
    """Report the weights and learning rate that an extended run continues with."""
    if (checkpoint := run.overfit_checkpoint) is not None:
        losses = (
            f"validation loss {checkpoint.last_loss:.4f} at step {run.state.step:,}, {checkpoint.loss:.4f} at its best"
        )
        print_note(f"        it has overfit ({losses}): from the weights of step-{checkpoint.step}, the best")
    chosen = []
    if run.plan.decay_step is not None:
        chosen.append(
            f"learning rate {run.learning_rate:.1e}, {run.plan.decay_scale:.0%} of its peak, falling to the end"
        )
    if run.config.model.dropout:
        chosen.append(f"dropout {run.config.model.dropout}")
    if chosen:
        print_note(f"        {'; '.join(chosen)}")


def describe_run(run: Run) -> None:
    """Report what the plan of a new run doesn't contain."""
    if run.config.lora:
        trained = sum(value.numel() for value in trainable_weights(run.model).values())
        size = format_trainable(trained, count_parameters(run.model))
        print_labelled("lora", f"rank {run.config.lora.rank} on {' and '.join(run.config.lora.kinds)}: {size}")
    if run.plan.micro_batch_tokens is not None:
        print_labelled("memory", f"at most {run.plan.micro_batch_tokens:,} tokens in one pass (--micro-batch-size)")
    print_note(f"run     {run.folder}")
    for warning in run.data.warnings():
        print_labelled("warning", warning)
