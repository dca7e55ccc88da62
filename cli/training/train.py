"""`lm train`: from flags to the specification of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from cli import completion
from cli.arguments import SentencePairs
from cli.console.messages import print_note
from cli.new_runs import resolve_hub_name
from cli.options import CommandLine, Options, spell_flag, with_settings
from lm.config.presets import DEFAULT_PRESET
from lm.config.run_config import SECTIONS
from lm.config.run_spec import build_spec
from lm.distributed import launcher_env
from lm.errors import UsageError
from lm.run_folder import RUNS
from lm.text.find import refuse_missing

_Corpus = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CORPUS…", help="Text, JSON, CSV, Parquet, …; files, folders, globs, - (stdin) or output of lm prepare."
    ),
]
_Source = Annotated[
    list[str] | None,
    typer.Option("--source", metavar="FILE", help="Source sentences, one per line. Repeatable."),
]
_Target = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        metavar="FILE",
        help="Translations of --source, line by line. Repeatable.",
    ),
]
_ValidationSource = Annotated[
    str | None,
    typer.Option(
        "--validation-source",
        metavar="FILE",
        help="Held-out source sentences, instead of a fraction.",
    ),
]
_ValidationTarget = Annotated[
    str | None,
    typer.Option("--validation-target", metavar="FILE", help="Translations of --validation-source."),
]
_Heads = Annotated[
    list[str] | None,
    typer.Option(
        "--dependency-heads",
        metavar="FILE",
        help="Dependency trees of --source: CoNLL heads, as 2 0 2. Repeatable.",
    ),
]
_ValidationHeads = Annotated[
    str | None,
    typer.Option("--validation-dependency-heads", metavar="FILE", help="Dependency trees of --validation-source."),
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
        autocompletion=completion.complete_presets,
    ),
]
_Depth = Annotated[
    int | None,
    typer.Option("--depth", metavar="LAYERS", min=1, max=99, help="Number of layers; width follows (preset depth-N)."),
]
_Portable = Annotated[bool, typer.Option("--portable", help="Qwen3 blocks, for llama.cpp and CTranslate2.")]
_Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings from a TOML file: preset, [model], …")
]
_Weights = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="RUN",
        help="Start from the weights and tokenizer of this run.",
        autocompletion=completion.complete_runs,
    ),
]
_Tokenizer = Annotated[
    str | None,
    typer.Option(
        "--tokenizer",
        metavar="bpe|char|byte|FILE",
        help="Kind of tokenizer to train, or a tokenizer.json or run to take it of.",
        autocompletion=completion.complete_runs,
    ),
]
_Resume = Annotated[
    Path | None,
    typer.Option(
        "--resume",
        metavar="[RUN]",
        help="Resume this run, or the newest unfinished one.",
        autocompletion=completion.complete_runs,
    ),
]
_Processes = Annotated[
    int | None,
    typer.Option("--processes", metavar="N", min=1, help="Data-parallel processes, one per GPU."),
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print plan, time, memory and full command.")]
_AsJson = Annotated[bool, typer.Option("--json", help="Print a summary as JSON when done.")]

_FLAGS = (
    "budget steps epochs n_layers n_heads d_model context vocab_size objective optimizer batch_size batch_tokens "
    "learning_rate weight_decay dropout positions seed evaluate_every validation text_column label_column "
    "include exclude encoding sample lora device dtype threads shard"
)
_COMMON = (
    "--out --budget --steps --epochs --preset --depth --source --target --validation --learning-rate --seed --portable "
    "--from --lora --resume --set --dry-run"
)


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


@with_settings(SECTIONS, _FLAGS, common=_COMMON, merges=False)
def train(
    context: typer.Context,
    corpus: _Corpus = None,
    *,
    source: _Source = None,
    target: _Target = None,
    pairs: SentencePairs = None,
    validation_source: _ValidationSource = None,
    validation_target: _ValidationTarget = None,
    dependency_heads: _Heads = None,
    validation_dependency_heads: _ValidationHeads = None,
    out: _Out = None,
    preset: _Preset = None,
    depth: _Depth = None,
    portable: _Portable = False,
    config: _Config = None,
    from_run: _Weights = None,
    tokenizer: _Tokenizer = None,
    resume: _Resume = None,
    processes: _Processes = None,
    dry_run: _DryRun = False,
    as_json: _AsJson = False,
    options: Options,
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
    environment variables (LM_STEPS is --steps) override the file, and flags and --set override both.

    Examples:
      lm train book.txt --budget 10m
      lm train texts/ --preset small --epochs 3 -o runs/novel
      lm train --resume runs/novel --steps 5000
      lm train src/ --include '*.py' --exclude tests
      lm train reviews.csv --text-column review
      lm train letters.txt --from runs/novel -o runs/letters
      lm train questions.jsonl --from runs/novel --epochs 3 -o runs/answers
      lm train book.txt --objective masked -o runs/masked
      lm train --source train.en --target train.de --budget 10m -o runs/german
      lm train book.txt --set model.experts=8 --set model.experts_per_token=2
      lm train texts/ --preset gpt2 --processes 8
    """
    if dry_run and (resume or (processes or 1) > 1):
        raise UsageError("--dry-run plans a new run in one process: leave out --resume and --processes")
    if from_run is not None:
        from_run = str(resolve_hub_name(Path(from_run)))
    own = {
        "source": source, "target": target, "pairs": pairs, "validation_source": validation_source,
        "validation_target": validation_target, "dependency_heads": dependency_heads,
        "validation_dependency_heads": validation_dependency_heads, "out": out, "preset": preset, "depth": depth,
        "portable": portable or None, "config": config, "from_run": from_run, "tokenizer": tokenizer, "resume": resume,
        "processes": processes,
    }  # fmt: skip
    spec = build_spec(corpus or (), {**own, **options.flags}, source="flag", place=spell_flag)
    refuse_missing(spec.data.names)
    command_line: CommandLine = context.obj
    if not launcher_env.is_external_launcher() and launcher_env.world_size() == 1 and spec.processes > 1:
        raise typer.Exit(_launch_processes(command_line, processes=spec.processes))
    launcher_env.silence_torch_logs()
    from cli.training import running

    running.run_training(spec, started_at=command_line.started_at, as_json=as_json, dry_run=dry_run)


def _launch_processes(command_line: CommandLine, *, processes: int) -> int:
    """Run this command line in several processes; returns the exit code."""
    from lm.distributed.launcher import launch

    result = launch(["-m", "cli", *command_line.arguments], processes=processes, start_time=command_line.started_at)
    if result.were_killed:
        print_note("lm: all processes of this training were killed; what was saved is there: resume with --resume")
    return result.code
