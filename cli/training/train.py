"""`lm train`: a model from a text, from examples, or from sentences and their translations."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.console.escapes import json_line
from cli.flags.options import Given, takes
from cli.training import clock, flags
from cli.training import pairs as parallel_corpus
from cli.training import text as text_corpus
from cli.training.budget import sized
from cli.training.pairs import ParallelFiles
from cli.training.settings import Settings, refuse_other_kind, settle
from cli.training.signals import StopSignals
from cli.training.text import TextCorpus
from lm.config.options import options
from lm.config.presets import DEFAULT_PRESET, DEFAULT_TRANSLATION_PRESET, named_by_depth, resolve
from lm.config.run import SECTIONS, RunConfig
from lm.config.training import LENGTHS
from lm.errors import UsageError

if TYPE_CHECKING:
    from lm.tokenizer.tokenizer import Tokenizer
    from lm.training.run import Run

RUNS = Path("runs")


def newest_by_default(arguments: Sequence[str]) -> list[str]:
    """A command line in which `--resume` without a run means the newest unfinished one in runs/.

    Typer has no options whose value can be left out.
    """
    given = list(arguments)
    if given[:1] == ["train"] and "--resume" in given:
        place = given.index("--resume") + 1
        if place == len(given) or given[place].startswith("-"):
            given.insert(place, str(RUNS))
    return given


@takes(SECTIONS, defaults=resolve(DEFAULT_PRESET))
def train(
    corpus: flags.Corpus = None,
    *,
    source: parallel_corpus.Source = None,
    target: parallel_corpus.Target = None,
    pairs: parallel_corpus.Pairs = None,
    validation_source: parallel_corpus.ValidationSource = None,
    validation_target: parallel_corpus.ValidationTarget = None,
    out: flags.Out = None,
    preset: flags.Preset = None,
    depth: flags.Depth = None,
    config: flags.Config = None,
    weights: flags.Weights = None,
    tokenizer: flags.Tokenizer = None,
    resume: flags.Resume = None,
    tensorboard: flags.TensorBoard = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON when done.")] = False,
    given: Given,
) -> None:
    """Train a language model on text of your own, or a translation model on sentences and their translations.

    The text is tokenized first (the tokens are kept for the next time), a tenth is held out, and the model with the
    lowest loss on it is the run's best. Ctrl-C saves; --resume goes on exactly where it stopped.

    A preset sets all that follows, a TOML file changes it, then the environment (LM_STEPS for --steps), and flags win
    over all of them. Tables and keys of the file are those of a run's config.json. The defaults shown are those of the
    preset tiny; translation starts from the preset translation.

    Examples:
      lm train book.txt
      lm train book.txt --budget 10m
      lm train texts/ --preset small --epochs 3 -o runs/novel
      lm train letters.txt --from runs/novel --steps 200 --learning-rate 3e-4 -o runs/letters
      lm train questions.jsonl --supervised --from runs/novel --epochs 3 -o runs/answers
      lm train --source train.en --target train.de --budget 10m -o runs/german
      lm train --resume runs/novel
    """
    if tensorboard:
        from cli.training.tensorboard import check_installed

        check_installed()
    files = ParallelFiles(source or (), target or (), pairs or (), validation_source, validation_target)
    if validation_source and "validation_source" not in given.environment:
        _check_held_out(files, given)
    text = TextCorpus(corpus or ())
    if text and files:
        raise UsageError("a run learns from a text or from pairs: give either a corpus, or --source and --target")
    if resume:
        _refuse_plan(given, out=out, preset=preset, depth=depth, config=config, weights=weights, tokenizer=tokenizer)
        run = _resumed(resume, files or text, given)
    else:
        if not text and not files:
            raise UsageError("name a corpus: text files, folders, globs, or - for stdin; or --source and --target")
        refuse_other_kind(given, pairs=bool(files))
        preset = _named(preset, depth, given, pairs=bool(files))
        default = DEFAULT_TRANSLATION_PRESET if files else DEFAULT_PRESET
        settings = settle(preset, config, weights, given, default=default, sized=partial(sized, files or text))
        if given.typed["tokenizer"] and (tokenizer or weights or text.prepared):
            flag = "--" + next(iter(given.typed["tokenizer"])).replace("_", "-")
            raise UsageError(f"{flag} is for training a tokenizer, but there is one already (leave it out)")
        made_with = text.data_config(settings.config.data, typed=given.typed["data"])
        settings = dataclasses.replace(settings, config=dataclasses.replace(settings.config, data=made_with))
        run = _started(files or text, settings, out=out, tokenizer=tokenizer or weights, weights=weights)
    signal_number = _train(run, tensorboard=tensorboard)
    if as_json:
        print(json_line(_summary(run)))
    if signal_number and not run.state.finished:
        raise typer.Exit(128 + signal_number)


def _check_held_out(files: ParallelFiles, given: Given) -> None:
    """UsageError if --validation-source is given where it holds out nothing."""
    if not files:
        raise UsageError("--validation-source is for pairs (--source, --target); of text, --validation names files")
    if "validation" in given.typed["data"]:
        raise UsageError("what is held out? Give either --validation-source and --validation-target, or --validation")


def _refuse_plan(given: Given, **plan: object) -> None:
    """UsageError if a run that goes on is given on the command line what it was planned with."""
    if any(value and name not in given.environment for name, value in plan.items()):
        raise UsageError("--resume goes on with a run as it was planned: it takes no folder, preset or tokenizer")


def _named(preset: str | None, depth: int | None, given: Given, *, pairs: bool) -> str | None:
    """The preset that --preset or --depth names; what is typed wins over the environment."""
    if depth is None:
        return preset
    named = named_by_depth(depth, pairs=pairs)
    if preset and not {"preset", "depth"} & given.environment.keys():
        raise UsageError(f"--depth {depth} is the preset {named}: leave out --preset")
    return preset if preset and "depth" in given.environment else named


def _started(
    corpus: TextCorpus | ParallelFiles,
    settings: Settings,
    *,
    out: Path | None,
    tokenizer: Path | None,
    weights: Path | None,
) -> Run:
    from cli.training.budget import paced
    from cli.training.plan import describe
    from lm.checkpoint import load_weights
    from lm.data.training_data import check_model
    from lm.hardware import found_device
    from lm.run_folder import refuse_existing
    from lm.training.compiling import check_compiler
    from lm.training.initial_weights import check_weights
    from lm.training.lock import refuse_trained
    from lm.training.starting import start

    config = settings.config
    folder = out or _free_folder(corpus.first, str(config.preset))
    refuse_existing(folder)
    refuse_trained(folder)
    check_model(config.model, pairs=corpus.holds_pairs)
    if weights:
        check_weights(config.model, weights)
    if config.training.compile:
        check_compiler(found_device(config.hardware))
    made, of_source, data = _prepared(corpus, config, tokenizer)
    initial = load_weights(weights) if weights else None
    pace = opened = None
    if config.training.budget is not None:
        config, pace, opened = paced(config, settings, data, made, of_source)
    run = start(
        folder,
        config,
        made,
        data,
        opened=opened,
        source_tokenizer=of_source,
        weights=initial,
        spent=clock.elapsed(),
        pace=pace.step if pace else 1.0,
        pause=pace.pause if pace else 0.0,
        hardware=pace.hardware if pace else None,
    )
    describe(run)
    return run


def _prepared(
    corpus: TextCorpus | ParallelFiles, config: RunConfig, tokenizer: Path | None
) -> tuple[Tokenizer, Tokenizer | None, Path]:
    """The tokenizer, that of the sources if they have their own, and the folder of the data: found or made now."""
    if isinstance(corpus, ParallelFiles):
        return parallel_corpus.prepare(corpus, config, tokenizer)
    made, folder = text_corpus.prepare(corpus, config, tokenizer)
    return made, None, folder


def _free_folder(corpus: str, preset: str) -> Path:
    stem = Path(corpus).stem if corpus != "-" else "stdin"
    stem = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in stem).strip("-.") or "run"
    names = (f"{stem}-{preset}" + (f"-{number}" if number > 1 else "") for number in range(1, 1_000_000))
    return next(RUNS / name for name in names if not (RUNS / name).exists())


def _resumed(path: Path, corpus: TextCorpus | ParallelFiles, given: Given) -> Run:
    from cli.console.messages import note
    from lm.run_folder import find_checkpoint, holds_runs, load_config
    from lm.training.compiling import check_compiler
    from lm.training.history import newest_unfinished
    from lm.training.resuming import resume

    lengths = {name: value for name, value in given.typed["training"].items() if name in LENGTHS}
    fixed = [
        described.flag
        for section, config in SECTIONS.items()
        for described in options(config)
        if described.name in given.typed[section] and described.name not in (*LENGTHS, "compile")
    ]
    if fixed:
        problem = f"{fixed[0]} cannot be changed (start a new run)"
        raise UsageError(f"--resume goes on with a run as it was planned; {problem}")
    if holds_runs(path) or (path == RUNS and not path.exists()):
        path = newest_unfinished(path)
    data = None
    if corpus:
        found = find_checkpoint(path, which="last")
        data = _prepared(corpus, load_config(found), found)[-1]
    longer = resolve(DEFAULT_PRESET, {"training": lengths}).training if lengths else None
    compiled = given.typed["training"].get("compile")
    run = resume(path, data=data, longer=longer, compiled=compiled, spent=clock.elapsed())
    if run.config.training.compile:
        check_compiler(run.plan.device)
    note(f"resume  {run.folder} at step {run.state.step:,} of {run.plan.steps:,}")
    if run.other_branch:
        names = ", ".join(folder.name for folder in run.other_branch)
        note(f"        {names}: of another branch from here on; removed once this one has saved")
    return run


def _train(run: Run, *, tensorboard: bool | None) -> int:
    """Train, drawing what happens; returns the number of the signal that stopped it, or 0."""
    from cli.console.messages import fact, note
    from cli.console.numbers import duration, perplexity, size
    from cli.training.budget import warn_of_few_steps
    from cli.training.display import TrainingDisplay
    from cli.training.tensorboard import is_recorded, recorder
    from lm.hardware import matrix_rate, peak_memory
    from lm.training.trainer import train

    recorded = is_recorded(run.folder) if tensorboard is None else tensorboard
    recording = recorder(run.folder, first_step=run.state.step + 1) if recorded else nullcontext()
    with StopSignals() as signals, recording as record:
        display = TrainingDisplay(
            steps=run.plan.steps,
            first_step=run.state.step,
            matrix_rate=matrix_rate(run.hardware),
        )
        with display:
            for event in train(run, stop=signals.received):
                display.show(event)
                if record:
                    record(event)
    if not run.state.finished:
        fact("stopped", f"at step {run.state.step:,}, saved")
        note(f"next    lm train --resume {run.folder}")
        return signals.number
    if run.config.training.budget is not None:
        warn_of_few_steps(run.state.step, f"{run.config.training.budget} was enough for")
    fact("done", f"{duration(run.state.seconds)} of training in all, {size(peak_memory())} of memory at most")
    if run.state.best_loss is not None:
        best, bleu = run.state.best_loss, run.state.best_bleu
        scores = f"validation loss {best:.4f}, perplexity {perplexity(best)}" + (f", BLEU {bleu:.1f}" if bleu else "")
        fact("best", f"{scores}, at step {run.state.best_step:,}")
    for place, command in enumerate(_next(run)):
        note(f"{'' if place else 'next':<8}{command}")
    return signals.number


def _next(run: Run) -> list[str]:
    """Commands to go on with."""
    if run.config.model.is_encoder_decoder:
        return [f"lm translate {run.folder} < FILE", f"lm evaluate {run.folder} --source FILE --target FILE"]
    return [f'lm generate {run.folder} "..."', f"lm perplexity {run.folder} FILE", f"lm info {run.folder}"]


def _summary(run: Run) -> dict[str, object]:
    state = run.state
    return {
        "run": str(run.folder), "steps": state.step, "finished": state.finished, "tokens": state.tokens,
        "best_loss": state.best_loss, "best_bleu": state.best_bleu, "best_step": state.best_step,
        "seconds": state.seconds, "flops": state.flops,
    }  # fmt: skip
