"""`lm train`: a model from a text."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import Given, takes
from lm.config import LENGTHS, SECTIONS, RunConfig, TrainingConfig
from lm.errors import InputError, UsageError
from lm.presets import DEFAULT_PRESET, PRESETS, read_toml, resolve

if TYPE_CHECKING:
    from lm.data.tokenizer import Tokenizer
    from lm.training.run import Run

RUNS = Path("runs")
_FEWEST_TOKENS_A_PARAMETER, _MOST_TOKENS_A_PARAMETER = 0.02, 1000


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


_Corpus = Annotated[
    list[str] | None,
    typer.Argument(
        help="Text files, globs, folders (their .txt, .text, .md, .jsonl, .ndjson, also compressed), - for stdin, "
        "or a folder of `lm prepare`."
    ),
]
_Out = Annotated[
    Path | None, typer.Option("--out", "-o", help="Folder of the new run [default: a new one under runs/].")
]
_Preset = Annotated[
    str | None,
    typer.Option("--preset", help=f"Start from these settings: {', '.join(PRESETS)} [default: {DEFAULT_PRESET}]."),
]
_Config = Annotated[
    Path | None,
    typer.Option("--config", help="Settings from a TOML file: preset, and tables [model], [training] and so on."),
]
_Weights = Annotated[
    Path | None,
    typer.Option("--from", help="Start from the weights of this run, with its tokenizer and a fresh schedule."),
]
_Tokenizer = Annotated[
    Path | None, typer.Option("--tokenizer", help="Use this tokenizer.json, or a run's, instead of training one.")
]
_Resume = Annotated[
    Path | None,
    typer.Option(
        "--resume",
        help="Go on with this run from its last checkpoint; without a name, with the newest one in runs/ that "
        "is not finished. A larger --steps trains on, with the schedule stretched to it. A corpus is needed only "
        "if the run's tokens are gone.",
    ),
]


@takes(SECTIONS, defaults=resolve(DEFAULT_PRESET), leave_out=("n_encoder_layers",))
def train(
    corpus: _Corpus = None,
    *,
    out: _Out = None,
    preset: _Preset = None,
    config: _Config = None,
    weights: _Weights = None,
    tokenizer: _Tokenizer = None,
    resume: _Resume = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON when done.")] = False,
    given: Given,
) -> None:
    """Train a language model on text of your own.

    The text is tokenized first (the tokens are kept for the next time), a tenth is held out, and the model with the
    lowest loss on it is the run's best. Ctrl-C saves; --resume goes on exactly where it stopped.

    A preset sets all that follows, a TOML file changes it, and flags win over both. Tables and keys of the file are
    those of a run's config.json. The defaults shown are those of the preset tiny.

    Examples:
      lm train book.txt
      lm train texts/ --preset small --epochs 3 -o runs/novel
      lm train letters.txt --from runs/novel --steps 200 --learning-rate 3e-4 -o runs/letters
      lm train --resume runs/novel
    """
    if resume:
        if out or preset or config or weights or tokenizer:
            raise UsageError("--resume goes on with a run as it was planned: it takes no folder, preset or tokenizer")
        run = _resumed(resume, corpus or [], given)
    else:
        if not corpus:
            raise UsageError("name a corpus: text files, folders, globs, or - for stdin")
        settings = _settings(preset, config, weights, given)
        if given["tokenizer"] and (tokenizer or weights or _is_prepared(corpus)):
            flag = "--" + next(iter(given["tokenizer"])).replace("_", "-")
            raise UsageError(f"{flag} is for training a tokenizer, but there is one already (leave it out)")
        run = _started(corpus, settings, out=out, tokenizer=tokenizer or weights, weights=weights)
    signal_number = _train(run)
    if as_json:
        print(json.dumps(_summary(run)))
    if signal_number and not run.state.finished:
        raise typer.Exit(128 + signal_number)


def _settings(preset: str | None, file: Path | None, weights: Path | None, given: Given) -> RunConfig:
    """The preset, changed by the file, the model to start from and the flags, the later winning over the earlier."""
    named, values = read_toml(file) if file else (None, {})
    merged = {section: {**values.get(section, {}), **given[section]} for section in SECTIONS}
    if weights:
        from lm.checkpoint import find_checkpoint, load_config

        base = vars(load_config(find_checkpoint(weights)).model)
        merged["model"] = {**base, **merged["model"]}
    config = resolve(preset or named or DEFAULT_PRESET, merged)
    if config.model.is_encoder_decoder:
        raise UsageError("the model is an encoder-decoder, which needs pairs of texts; lm train takes a corpus")
    return config


def _started(
    corpus: list[str], config: RunConfig, *, out: Path | None, tokenizer: Path | None, weights: Path | None
) -> Run:
    from lm.checkpoint import load_weights
    from lm.training.run import refuse_existing, start

    folder = out or _free_folder(corpus[0], str(config.preset))
    refuse_existing(folder)
    made, data = _tokens(corpus, config, tokenizer)
    run = start(folder, config, made, data, weights=load_weights(weights) if weights else None)
    _describe(run)
    return run


def _describe(run: Run) -> None:
    """Say what will be trained, on what, for how long; and warn where model and text are far from fitting."""
    from cli.display import count, note, quantity
    from lm.model.block import count_parameters
    from lm.model.cost import training_flops

    parameters, tokens, first = count_parameters(run.model), run.data.tokens, run.data.batch(0)
    epochs = run.plan.steps / run.data.steps_per_epoch
    seen = epochs * tokens
    rows, length = first.inputs.shape
    flops = run.plan.steps * training_flops(run.config.model, rows=rows, length=length)
    note(
        f"model   {count(parameters)} parameters (preset {run.config.preset}), {run.plan.dtype} on {run.plan.device}, "
        f"{run.plan.threads} threads"
    )
    note(
        f"plan    {run.plan.steps:,} steps of {rows} x {length} tokens: {epochs:.1f} epochs, "
        f"{count(tokens / parameters)} tokens of text a parameter, {quantity(flops, 'FLOPs')}"
    )
    note(f"run     {run.folder}")
    warmup = run.config.training.warmup_steps
    if 2 * warmup > run.plan.steps:
        note(f"warning the learning rate rises over {warmup} of {run.plan.steps:,} steps (--warmup-steps)")
    if tokens < _FEWEST_TOKENS_A_PARAMETER * parameters:
        note("warning the model is far too large for this text and will learn it by heart: try a smaller --preset")
    elif min(tokens, seen) > _MOST_TOKENS_A_PARAMETER * parameters:
        note("warning the model is far too small for this much text: try a larger --preset")


def _tokens(corpus: list[str], config: RunConfig, tokenizer: Path | None) -> tuple[Tokenizer, Path]:
    """The tokenizer and the folder of shards: those of `lm prepare`, or made now."""
    from cli.display import count, note, size
    from cli.prepare import encode_progress, tokenizer_for
    from lm.data import documents, shards
    from lm.data.preparation import prepare_cached
    from lm.data.tokenizer import FILE_NAME, Tokenizer

    if _is_prepared(corpus):
        folder = Path(corpus[0])
        manifest, made = shards.read_manifest(folder), Tokenizer.load(tokenizer or folder / FILE_NAME)
        if made.sha256 != manifest.tokenizer:
            raise InputError(f"{tokenizer}: not the tokenizer that made the tokens in {folder} (leave out --tokenizer)")
    else:
        sources = documents.resolve(corpus, field=config.data.field)
        made = tokenizer_for(sources, config, tokenizer)
        with encode_progress() as progress:
            prepared = prepare_cached(sources, made, config.data, progress=progress)
        folder, manifest = prepared.folder, prepared.manifest
        note(f"tokens  {folder}{' (made before)' if prepared.reused else ''}")
    train, held_out = manifest.splits["train"], manifest.splits["validation"]
    note(
        f"corpus  {size(train.bytes + held_out.bytes)}, vocabulary {made.vocab_size:,}: {count(train.tokens)} tokens "
        f"to train on, {count(held_out.tokens)} held out"
    )
    if tokenizer is None and config.tokenizer.kind == "bpe" and made.vocab_size < config.tokenizer.vocab_size:
        note(f"        (no more pairs occur often enough for a vocabulary of {config.tokenizer.vocab_size:,})")
    return made, folder


def _is_prepared(corpus: list[str]) -> bool:
    """Whether the corpus is a folder of tokens rather than text."""
    return len(corpus) == 1 and (Path(corpus[0]) / "manifest.json").is_file()


def _free_folder(corpus: str, preset: str) -> Path:
    stem = Path(corpus).stem if corpus != "-" else "stdin"
    stem = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in stem).strip("-.") or "run"
    names = (f"{stem}-{preset}" + (f"-{number}" if number > 1 else "") for number in range(1, 1_000_000))
    return next(RUNS / name for name in names if not (RUNS / name).exists())


def _resumed(path: Path, corpus: list[str], given: Given) -> Run:
    from cli.display import note
    from lm.checkpoint import find_checkpoint, load_config
    from lm.training.history import newest_unfinished
    from lm.training.run import resume

    lengths = {name: value for name, value in given["training"].items() if name in LENGTHS}
    fixed = [name for section in given.values() for name in section if name not in LENGTHS]
    if fixed:
        flag = "--" + fixed[0].replace("_", "-")
        raise UsageError(f"--resume goes on with a run as it was planned; {flag} cannot be changed (start a new run)")
    is_folder_of_runs = path.is_dir() and not (path / "checkpoints").exists() and any(path.glob("*/checkpoints"))
    if is_folder_of_runs or (path == RUNS and not path.exists()):
        path = newest_unfinished(path)
    data = None
    if corpus:
        found = find_checkpoint(path, which="last")
        data = _tokens(corpus, load_config(found), found)[1]
    run = resume(path, data=data, longer=TrainingConfig(**lengths) if lengths else None)
    note(f"resume  {run.folder} at step {run.state.step:,} of {run.plan.steps:,}")
    return run


def _train(run: Run) -> int:
    """Train, drawing what happens; returns the number of the signal that stopped it, or 0."""
    from cli.display import TrainingDisplay, duration, note, perplexity, size
    from lm.hardware import matrix_rate, peak_memory
    from lm.training.trainer import train

    with _StopSignals() as signals:
        display = TrainingDisplay(
            steps=run.plan.steps,
            first_step=run.state.step,
            matrix_rate=matrix_rate(run.hardware),
        )
        with display:
            for event in train(run, stop=signals.received):
                display.show(event)
    if not run.state.finished:
        note(f"stopped at step {run.state.step:,}, saved; go on with: lm train --resume {run.folder}")
        return signals.number
    note(f"done    {duration(run.state.seconds)} of training in all, {size(peak_memory())} of memory at most")
    if run.state.best_loss is not None:
        best = run.state.best_loss
        note(f"best    validation loss {best:.4f}, perplexity {perplexity(best)}, at step {run.state.best_step:,}")
    note(f'next    lm generate {run.folder} "..."')
    note(f"        lm perplexity {run.folder} FILE")
    note(f"        lm info {run.folder}")
    return signals.number


class _StopSignals:
    """While open, the first Ctrl-C or SIGTERM asks training to stop after its step; the second ends it at once."""

    def __init__(self) -> None:
        self.number = 0
        self._before: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> _StopSignals:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.number:
            raise SystemExit(128 + number)
        self.number = number
        print("\nstopping after this step; once more to stop at once, without saving", file=sys.stderr)

    def received(self) -> bool:
        """Whether a signal has come."""
        return self.number != 0


def _summary(run: Run) -> dict[str, object]:
    state = run.state
    return {
        "run": str(run.folder), "steps": state.step, "finished": state.finished, "tokens": state.tokens,
        "best_loss": state.best_loss, "best_step": state.best_step, "seconds": state.seconds, "flops": state.flops,
    }  # fmt: skip
