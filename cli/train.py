"""`lm train`: from flags to the specification of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.loading import resolve_hub_name
from cli.options import CommandLine, spell_flag, with_settings
from lm.config.run_spec import SPEC_SECTIONS, build_spec
from lm.config.settings import Layer
from lm.errors import UsageError
from lm.text.find import refuse_missing
from lm.training import launcher_env

_Corpus = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CORPUS…", help="Text, JSON, CSV, Parquet, …; files, folders, globs, - (stdin) or output of lm prepare."
    ),
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print plan, time and memory.")]
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON: a summary when done; of a --dry-run the settings.")]

_FLAGS = (
    "source target validation_source validation_target dependency_heads validation_dependency_heads out "
    "preset depth portable config from_run teacher tokenizer resume processes budget steps epochs n_layers n_heads "
    "d_model context vocab_size objective optimizer batch_size batch_tokens learning_rate weight_decay dropout "
    "positions seed evaluate_every validation text_column label_column source_column target_column include exclude "
    "encoding sample lora device dtype threads shard "
)
_COMMON = (
    "--out --budget --steps --epochs --preset --depth --source --target --validation --learning-rate --seed --portable "
    "--from --lora --resume --set --dry-run"
)


@with_settings(SPEC_SECTIONS, _FLAGS, common=_COMMON, merges=False)
def train(
    context: typer.Context,
    corpus: _Corpus = None,
    *,
    dry_run: _DryRun = False,
    as_json: _AsJson = False,
    options: dict[str, Any],
) -> None:
    """Train a language or translation model on your own text.

    The corpus is tokenized first (tokens are cached), and up to a tenth is held out. The checkpoint with the lowest
    validation loss is the run's best. Ctrl-C saves and stops; --resume continues exactly where the run stopped. With a
    larger --steps or with --budget, it also extends a finished run.

    Without --budget, --steps or --epochs, the training time is chosen by the size of the corpus, 1 to 30 minutes, for
    text, conversations and pairs; examples, labels and presets of other systems have numbers of steps. With a time,
    vocabulary, model size and regularisation are chosen by time and corpus. The plan shows the reason for each value;
    an option overrides only its own value. When the validation loss no longer falls, the learning rate decays and
    training ends.

    With --steps or --epochs, the preset sets all other values. A TOML file (--config) overrides the preset,
    environment variables (LM_STEPS is --steps) override the file, and flags and --set override both.

    Examples:
      lm train book.txt --budget 10m
      lm train texts/ --preset small --epochs 3 -o runs/novel
      lm train --resume runs/novel --steps 5000
      lm train src/ --include '*.py' --exclude tests
      lm train reviews.csv --text-column review
      lm train letters.txt --from runs/novel -o runs/letters
      lm train questions.jsonl --from runs/novel --epochs 3 -o runs/answers
      lm train book.txt --teacher runs/book-1 --teacher runs/book-2 --budget 10m -o runs/student
      lm train book.txt --objective masked -o runs/masked
      lm train --source train.en --target train.de --budget 10m -o runs/german
      lm train pairs.csv --source-column english --target-column german
      lm train book.txt --set model.experts=8 --set model.experts_per_token=2
      lm train texts/ --preset gpt2 --processes 8
    """
    if "from_run" in options:
        options["from_run"] = resolve_hub_name(Path(options["from_run"]))
    if "teacher" in options:
        options["teacher"] = [str(resolve_hub_name(Path(name))) for name in options["teacher"]]
    spec = build_spec(corpus or (), Layer("flag", options, spell_flag))
    if dry_run and (spec.resume or spec.processes > 1):
        raise UsageError("--dry-run plans a new run in one process: leave out --resume and --processes")
    refuse_missing(spec.data.names)
    command_line: CommandLine = context.obj
    if spec.processes > 1 and launcher_env.world_size() == 1:
        from lm.training.multiprocess import launch

        program = ["-P", "-m", "cli", *command_line.arguments]
        raise typer.Exit(launch(program, processes=spec.processes, start_time=command_line.started_at))
    from cli import training

    training.run_training(spec, started_at=command_line.started_at, as_json=as_json, dry_run=dry_run)
