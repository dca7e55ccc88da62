"""What `lm train` says on stderr before the first step: the corpus, what a budget chose, and the plan."""

from __future__ import annotations

from cli.console.messages import fact, note
from cli.console.numbers import count, duration, many, size
from cli.corpus_report import MUCH_REPEATED, print_notes, warn_of_repetition
from cli.flags.ineffective_options import has_no_dropout
from cli.flags.settings import with_flags
from cli.training.plan import shortest_seconds, show_plan
from lm.config.model import ModelConfig
from lm.config.presets import could_be_portable
from lm.config.run import RunConfig
from lm.config.training import LENGTHS
from lm.corpus.manifest import Manifest, PairManifest
from lm.data.labels import LabelCounts
from lm.hardware import matrix_rate
from lm.model.lora import trainable_weights
from lm.model.transformer import count_parameters
from lm.run_folder import CONFIG
from lm.training.compiling import COMPILATION_SECONDS
from lm.training.continuation import Continued
from lm.training.corpus import CorpusPrepared, TokenizerSampled
from lm.training.run import Run
from lm.training.trainer import Event, Planned, Started

_BLOCKS_AROUND = 2
"""Of BigBird's window: a query's own block and the one before it, which encoders have too."""
_SHOWN_LABELS = 12


def report(event: Event) -> None:
    """Report an event that precedes the first step; nothing for others."""
    if isinstance(event, TokenizerSampled):
        note(f"tokenizer trained on a sample: {size(event.bytes)} of {size(event.corpus_bytes)}")
    elif isinstance(event, CorpusPrepared):
        _report_corpus(event)
    elif isinstance(event, Continued):
        _report_continuation(event)
    elif isinstance(event, Planned):
        show_plan(event)
    elif isinstance(event, Started) and event.is_resumed:
        _report_resumption(event)
    elif isinstance(event, Started):
        describe_run(event.run, is_tuned=event.is_tuned)


def _report_corpus(event: CorpusPrepared) -> None:
    """How much there is to train on and how much is held out, and what of it is unlikely to be meant."""
    if event.reused is not None:
        print_notes(event.notes)
        note(f"tokens  {event.corpus.folder}{' (made before)' if event.reused else ''}")
    if isinstance(event.manifest, PairManifest):
        _report_pairs(event, event.manifest)
    else:
        _report_text(event, event.manifest)


def _report_text(event: CorpusPrepared, manifest: Manifest) -> None:
    train, held_out, tokenizer = manifest.splits["train"], manifest.splits["validation"], event.corpus.tokenizer
    if manifest.supervised:
        parts = f"{train.documents:,} examples to train on, {held_out.documents:,} held out"
    else:
        parts = f"{count(train.tokens)} tokens to train on, {count(held_out.tokens)} held out"
        parts += f", {train.bytes / train.tokens:.2f} bytes/token"
    fact("corpus", f"{size(train.bytes + held_out.bytes)}, vocabulary {tokenizer.vocab_size:,}: {parts}")
    if event.trained is not None and tokenizer.vocab_size < event.trained:
        fact("", f"(no more pairs occur often enough for a vocabulary of {event.trained:,})")
    if event.labels is not None:
        _report_labels(event.labels)
    warn_of_repetition(manifest)


def _report_labels(counts: LabelCounts) -> None:
    """How many examples have each label, the most frequent first, and what is learned by none."""
    total, (majority, fraction) = max(1, sum(counts.train.values())), counts.majority
    shown = [f"{label} {number:,} ({number / total:.1%})" for label, number in counts.train.items()]
    more = f" and {len(shown) - _SHOWN_LABELS:,} more" if len(shown) > _SHOWN_LABELS else ""
    fact("labels", f"{len(shown):,}: {', '.join(shown[:_SHOWN_LABELS])}{more}")
    fact("", f"always {majority!r} would be right for {fraction:.1%} of the examples to train on")
    if unseen := [label for label, number in counts.train.items() if not number]:
        some = ", ".join(map(repr, unseen[:_SHOWN_LABELS]))
        fact("warning", f"no example to train on has the label {some}: hold out less, or other examples (--validation)")


def _report_pairs(event: CorpusPrepared, manifest: PairManifest) -> None:
    train, held_out = (manifest.splits[name] for name in ("train", "validation"))
    target, source = event.corpus.tokenizer, event.corpus.source_tokenizer
    vocabulary = f"{target.vocab_size:,}" if source is None else f"{source.vocab_size:,} and {target.vocab_size:,}"
    fact("corpus", f"{train.pairs:,} pairs to train on, {held_out.pairs:,} held out, vocabulary {vocabulary}")
    reasons = {
        "with a blank side": train.blank + held_out.blank,
        "too long (--max-length)": train.too_long + held_out.too_long,
        "of unequal lengths (--max-ratio)": train.ratio + held_out.ratio,
    }
    if left_out := [f"{number:,} {reason}" for reason, number in reasons.items() if number]:
        fact("", f"left out: {', '.join(left_out)}")
    if event.seen_in_training >= MUCH_REPEATED:
        fact(
            "warning",
            f"{event.seen_in_training:.0%} of the held-out pairs are among those to train on: the validation loss will "
            "look better than it is (--validation-source)",
        )
    for name in event.copies:
        fact("warning", f"{name}: source and target are the same text, so the model learns to copy (--target)")


def _report_continuation(event: Continued) -> None:
    """What was chosen for a run that starts with another one's weights, and the losses that it was chosen by."""
    rate = f"learning rate {event.config.training.learning_rate:.1e}"
    if event.fraction is not None:
        rate += f" ({event.fraction:.1%} of a new model's)"
    losses = ""
    if event.initial_loss is not None:
        losses = f"loss {event.initial_loss:.2f} on this text"
        losses += "" if event.parent_loss is None else f", {event.parent_loss:.2f} on the one it was trained on"
    length = "" if event.steps is None else f", {many(event.steps, 'step')} ({event.epochs:.1f} epochs)"
    fact("from", f"{losses}{': ' if losses else ''}{rate}{length}")


def _report_resumption(event: Started) -> None:
    """Where a run resumes, and what of it is lost or differs."""
    run = event.run
    note(f"resume  {run.folder} at step {run.state.step:,} of {run.plan.steps:,}")
    if run.plan.extended_at == run.state.step:
        _report_extension(run)
    if event.lost:
        lost = f"what was learned after step {run.state.step:,} is lost"
        note(f"        {event.lost}, the last checkpoint, is gone: {lost}")
    if run.other_branch:
        names = ", ".join(folder.name for folder in run.other_branch)
        note(f"        {names}: of another branch from here on; removed once this one has saved")
    if event.other_length:
        training, length = run.config.training, event.other_length
        flags = " ".join(f"--{name} {value}" for name, value in length.items())
        was = ", ".join(f"{name} {value}" for name in LENGTHS if (value := getattr(training, name)) is not None)
        fact(
            "note", f"{run.folder / CONFIG} had another length than the checkpoint ({was}); to train that long: {flags}"
        )


def _report_extension(run: Run) -> None:
    """What an extended run continues with: the weights of which checkpoint, and which learning rate."""
    if (found := run.overfit) is not None:
        losses = f"validation loss {found.last_loss:.4f} at step {run.state.step:,}, {found.loss:.4f} at its best"
        note(f"        it has overfit ({losses}): from the weights of step-{found.step}, the best")
    chosen = []
    if run.plan.decay_step is not None:
        chosen.append(f"learning rate {run.rate:.1e}, {run.plan.decay_share:.0%} of its peak, falling to the end")
    if run.config.model.dropout:
        chosen.append(f"dropout {run.config.model.dropout}")
    if chosen:
        note(f"        {'; '.join(chosen)}")


def describe_run(run: Run, *, is_tuned: bool = False) -> None:
    """Say on stderr where a new run is and what isn't in its plan, and warn of what is unlikely to be meant.

    Args:
        run: before its first step.
        is_tuned: whether it starts from the weights of another run, which settle its blocks.
    """
    training, parameters = run.config.training, count_parameters(run.model)
    epochs = run.plan.steps / run.data.steps_per_epoch
    watches_loss = training.decay_patience is not None  # so that it ends before it memorises its text
    if not is_tuned and could_be_portable(run.config):
        fact(
            "blocks", "the recipe's, which llama.cpp and CTranslate2 can't run: --portable has theirs (docs/recipe.md)"
        )
    if run.config.lora:
        fact("lora", _adapters(run))
    if run.plan.micro_batch_tokens is not None:
        fact("memory", f"at most {run.plan.micro_batch_tokens:,} tokens in one pass (--micro-batch-size)")
    note(f"run     {run.folder}")
    shortest = (
        shortest_seconds(run.config, run.data, matrix_rate(run.hardware)) if run.config.training.compile else None
    )
    for warning in (
        *([] if shortest is None else compiling_warnings(shortest)),
        *_schedule_warnings(run),
        *_r_drop_warnings(run.config),
        *_attention_warnings(run.config.model),
        *([] if watches_loss else run.data.warnings(parameters=parameters, epochs=epochs, patience=training.patience)),
    ):
        fact("warning", with_flags(warning))


def _adapters(run: Run) -> str:
    """What is trained beside the weights of another run."""
    trained = sum(value.numel() for value in trainable_weights(run.model).values())
    share = f"{count(trained)} parameters are trained, {trained / count_parameters(run.model):.1%} of all"
    return f"rank {run.config.lora.rank} on {' and '.join(run.config.lora.kinds)}: {share}"


def compiling_warnings(seconds: float) -> list[str]:
    """A warning if compiling a model takes longer than its training would, in so many seconds at full speed."""
    if seconds >= COMPILATION_SECONDS:
        return []
    return [
        f"--compile takes a minute or more first, and this run is {duration(seconds)} of arithmetic at full speed: "
        "it will hardly repay it"
    ]


def _schedule_warnings(run: Run) -> list[str]:
    """A warning for each quantity that rises over more than half of the steps."""
    training, steps = run.config.training, run.plan.steps
    rises = (
        ("learning rate", training.warmup_steps, "--warmup-steps"),
        ("batch", training.batch_warmup, "--batch-warmup"),
    )
    return [
        f"the {what} rises over the first {warmup} steps, and there are only {steps:,}: give fewer ({flag})"
        for what, warmup, flag in rises
        if 2 * warmup > steps
    ]


def _r_drop_warnings(config: RunConfig) -> list[str]:
    """A warning if R-Drop compares two passes that are the same, as nothing is dropped."""
    if config.training.passes == 1 or not has_no_dropout(config):
        return []
    return ["without dropout the two passes of R-Drop are the same: it takes twice as long for nothing (--dropout)"]


def _attention_warnings(model: ModelConfig) -> list[str]:
    """A warning if what a pattern of attention lets a query see is the whole context anyway."""
    settings = model.attention_settings
    if model.attention == "window":
        seen, flag = settings["attention_window"], "--attention-window"
    elif model.attention == "bigbird":
        blocks = settings["global_blocks"] + settings["random_blocks"] + _BLOCKS_AROUND
        seen, flag = blocks * settings["attention_block"], "--attention-block"
    else:
        return []
    if seen < model.context_length:
        return []
    return [
        f"{model.attention} attention sees {seen} positions, and the context has no more than {model.context_length}: "
        f"it is full attention at a higher price (--context, {flag})"
    ]
