"""`lm train`: from flags to the specification of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from cli.console.messages import print_note
from cli.flags import shell_completion
from cli.flags.arguments import SentencePairs
from cli.flags.options import ParsedOptions, with_options
from cli.new_runs import resolve_hub_name
from lm.config.presets import DEFAULT_PRESET, build_run_config, depth_preset_name
from lm.config.run_config import SECTIONS, RunConfig
from lm.config.run_spec import DataFiles, RunSpec, merge_layers
from lm.config.toml import read_toml
from lm.config.training import LENGTHS
from lm.distributed import launcher_env
from lm.errors import UsageError
from lm.run_folder import RUNS
from lm.text.text_files import refuse_missing

_TRANSLATION, _SYNTAX = "Translation", "Syntax"

_Corpus = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CORPUS…", help="Text, JSON, CSV, Parquet, …; files, folders, globs, - (stdin) or output of lm prepare."
    ),
]
_Source = Annotated[
    list[str] | None,
    typer.Option(
        "--source", metavar="FILE", help="Source sentences, one per line. Repeatable.", rich_help_panel=_TRANSLATION
    ),
]
_Target = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        metavar="FILE",
        help="Translations of --source, line by line. Repeatable.",
        rich_help_panel=_TRANSLATION,
    ),
]
_ValidationSource = Annotated[
    str | None,
    typer.Option(
        "--validation-source",
        metavar="FILE",
        help="Held-out source sentences, instead of a fraction.",
        rich_help_panel=_TRANSLATION,
    ),
]
_ValidationTarget = Annotated[
    str | None,
    typer.Option(
        "--validation-target", metavar="FILE", help="Translations of --validation-source.", rich_help_panel=_TRANSLATION
    ),
]
_Heads = Annotated[
    list[str] | None,
    typer.Option(
        "--heads",
        metavar="FILE",
        help="Dependency trees of --source: CoNLL heads, as 2 0 2. Repeatable.",
        rich_help_panel=_SYNTAX,
    ),
]
_ValidationHeads = Annotated[
    str | None,
    typer.Option(
        "--validation-heads", metavar="FILE", help="Dependency trees of --validation-source.", rich_help_panel=_SYNTAX
    ),
]
_Out = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Folder of the new run. [default: in runs/]")
]
_Preset = Annotated[
    str | None,
    typer.Option(
        "--preset",
        metavar="NAME",
        help=f"Model and training recipe (lm info lists them). [default: {DEFAULT_PRESET}]",
        autocompletion=shell_completion.complete_presets,
    ),
]
_Depth = Annotated[
    int | None,
    typer.Option("--depth", metavar="LAYERS", min=1, max=99, help="Number of layers; width follows (preset depth-N)."),
]
_Portable = Annotated[
    bool, typer.Option("--portable", help="Qwen3 blocks, for llama.cpp and CTranslate2.", rich_help_panel="Model")
]
_Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings from a TOML file: preset, [model], …")
]
_Weights = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="RUN",
        help="Start from the weights and tokenizer of this run.",
        autocompletion=shell_completion.complete_runs,
    ),
]
_Tokenizer = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        metavar="FILE",
        help="Use this tokenizer.json, or the tokenizer of a run.",
        autocompletion=shell_completion.complete_runs,
        rich_help_panel="Tokenizer",
    ),
]
_Resume = Annotated[
    Path | None,
    typer.Option(
        "--resume",
        metavar="[RUN]",
        help="Resume this run, or the newest unfinished one.",
        autocompletion=shell_completion.complete_runs,
    ),
]
_Processes = Annotated[
    int | None,
    typer.Option(
        "--processes", metavar="N", min=1, help="Data-parallel processes, one per GPU.", rich_help_panel="Hardware"
    ),
]
_TensorBoard = Annotated[
    bool | None,
    typer.Option(
        "--tensorboard/--no-tensorboard",
        help="Write TensorBoard files. [default: only if the resumed run has some]",
        rich_help_panel="Evaluation",
    ),
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print plan, time, memory and full command.")]
_AsJson = Annotated[bool, typer.Option("--json", help="Print a summary as JSON when done.")]

_COMMON = (
    "--out", "--budget", "--steps", "--epochs", "--preset", "--depth", "--source", "--target", "--validation",
    "--learning-rate", "--seed", "--portable", "--from", "--lora", "--resume", "--set", "--dry-run",
)  # fmt: skip


def newest_by_default(arguments: Sequence[str]) -> list[str]:
    """Insert the value of `--resume` without a run: the newest unfinished one in runs/.

    Typer has no options with optional values.
    """
    words = list(arguments)
    if words[:1] == ["train"] and "--resume" in words:
        index = words.index("--resume") + 1
        if index == len(words) or words[index].startswith("-"):
            words.insert(index, str(RUNS))
    return words


def _shown_defaults() -> RunConfig:
    """Return the defaults that help shows: those of a preset, without its length, which is a time if none is given."""
    config = build_run_config(DEFAULT_PRESET)
    return dataclasses.replace(config, training=config.training.replace(**dict.fromkeys(LENGTHS)))


@with_options(SECTIONS, defaults=_shown_defaults(), common=_COMMON)
def train(
    corpus: _Corpus = None,
    *,
    source: _Source = None,
    target: _Target = None,
    pairs: SentencePairs = None,
    validation_source: _ValidationSource = None,
    validation_target: _ValidationTarget = None,
    heads: _Heads = None,
    validation_heads: _ValidationHeads = None,
    out: _Out = None,
    preset: _Preset = None,
    depth: _Depth = None,
    portable: _Portable = False,
    config: _Config = None,
    from_run: _Weights = None,
    tokenizer: _Tokenizer = None,
    resume: _Resume = None,
    processes: _Processes = None,
    tensorboard: _TensorBoard = None,
    dry_run: _DryRun = False,
    as_json: _AsJson = False,
    options: ParsedOptions,
) -> None:
    """Train a language or translation model on your own text.

    The corpus is tokenized first (tokens are cached), and up to a tenth is held out. The checkpoint with the lowest
    validation loss is the run's best. Ctrl-C saves and stops; --resume continues exactly where the run stopped. With a
    larger --steps or with --budget, it also extends a finished run.

    Without --budget, --steps, --epochs or --tokens, the training time is chosen by the size of the corpus: 1 to 30
    minutes. With a time, vocabulary, model size and regularisation are chosen by time and corpus. The plan shows the
    reason for each value; an option overrides only its own value. When the validation loss no longer falls, the
    learning rate decays and training ends.

    With --steps, --epochs or --tokens, the preset sets all other values. A TOML file (--config) overrides the preset,
    environment variables (LM_STEPS is --steps) override the file, and flags and --set override both. Defaults shown
    are those of the preset tiny.

    Examples:
      lm train book.txt --budget 10m
      lm train texts/ --preset small --epochs 3 -o runs/novel
      lm train --resume runs/novel --steps 5000
      lm train src/ --include '*.py' --exclude tests
      lm train reviews.csv --text-column review
      lm train letters.txt --from runs/novel -o runs/letters
      lm train questions.jsonl --supervised --from runs/novel --epochs 3 -o runs/answers
      lm train book.txt --objective masked -o runs/masked
      lm train --source train.en --target train.de --budget 10m -o runs/german
      lm train book.txt --set model.experts=8 --set model.experts_per_token=2
      lm train texts/ --preset gpt2 --processes 8
    """
    data = DataFiles(
        text=tuple(corpus or ()),
        source=tuple(source or ()),
        target=tuple(target or ()),
        pairs=tuple(pairs or ()),
        validation_source=validation_source,
        validation_target=validation_target,
        heads=tuple(heads or ()),
        validation_heads=validation_heads,
    )
    spec = RunSpec(
        data=data,
        out=_optional_text(out),
        portable=portable,
        from_run=_optional_text(from_run),
        resume=_optional_text(resume),
        tokenizer=_optional_text(tokenizer),
        processes=processes or 1,
    )
    if config is not None and resume is not None and "config" not in options.environment:
        raise UsageError("a resumed run keeps its settings: leave out --config, or start a new run")
    if dry_run and (resume or (processes or 1) > 1):
        raise UsageError("--dry-run plans a new run in one process: leave out --resume and --processes")
    is_launched = launcher_env.is_external_launcher()
    corpus_files = [*data.text, *data.source, *data.target, *data.pairs, *data.heads]
    if not is_launched and launcher_env.world_size() == 1 and spec.processes > 1:
        refuse_missing(corpus_files)
        raise typer.Exit(_launch_processes(options, processes=spec.processes))
    launcher_env.silence_torch_logs()
    if launcher_env.rank() == 0:  # rank 0 prepares the run for all
        spec = _add_settings(spec, options, preset=preset, depth=depth, file=config)
        refuse_missing(corpus_files)
        if from_run is not None:
            spec = dataclasses.replace(spec, from_run=str(resolve_hub_name(from_run)))
    from cli.training import running

    running.run_training(spec, options, tensorboard=tensorboard, as_json=as_json, dry_run=dry_run)


def _launch_processes(options: ParsedOptions, *, processes: int) -> int:
    """Run this command line in several processes; returns the exit code."""
    from lm.distributed.launcher import launch

    result = launch(["-m", "cli", *options.arguments], processes=processes, start_time=options.started_at)
    if result.were_killed:
        print_note(
            "lm: all processes of this training were killed; what was saved is there: resume it with --resume, or "
            "start again if nothing was"
        )
    return result.code


def _optional_text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _add_settings(
    spec: RunSpec, options: ParsedOptions, *, preset: str | None, depth: int | None, file: Path | None
) -> RunSpec:
    """Return a specification with preset and settings: flags override the environment, which overrides a TOML file."""
    set_by = {name: "environment" if name in options.environment else "flag" for name in _SPEC_FIELDS}
    set_by["preset"] = "environment" if {"preset", "depth"} & options.environment.keys() else "flag"
    if depth is not None:
        named = depth_preset_name(depth, pairs=spec.data.are_pairs)
        if preset and set_by["preset"] == "flag":
            raise UsageError(f"--depth {depth} is the preset {named}: leave out --preset")
        if not (preset and "depth" in options.environment):
            preset = named
    if depth is not None and "depth" not in options.environment and "n_layers" in options.from_flags["model"]:
        raise UsageError(f"--depth {depth} says how many layers there are: leave out --n-layers")
    in_file, values = read_toml(file) if file is not None and spec.resume is None else (None, {})
    if preset is None and in_file is not None:
        preset, set_by["preset"] = in_file, "file"
    settings, by_setting = merge_layers(
        [("file", values), ("environment", options.from_environment), ("flag", options.from_flags)]
    )
    named_by = {name: source for name, source in set_by.items() if getattr(spec, name) or (name == "preset" and preset)}
    return dataclasses.replace(spec, preset=preset, settings=settings, set_by={**named_by, **by_setting})


_SPEC_FIELDS = ("out", "preset", "portable", "from_run", "resume", "tokenizer")
