"""`lm train`: a model from a text, from examples, or from sentences and their translations."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from cli.flags.options import Given, takes
from cli.training import flags
from cli.training.request import RUNS, NewRun, PairFiles, Request, TrainingFiles
from lm.config.presets import DEFAULT_PRESET, configure
from lm.config.run import SECTIONS
from lm.distributed import launched


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


def _to_start(processes: int | None) -> int:
    """How many processes are to be started that train together; 0 where this one is alone, or one of them."""
    if launched.by_another():
        return 0
    return processes if processes is not None and processes > 1 and launched.size() == 1 else 0


@takes(SECTIONS, defaults=configure(DEFAULT_PRESET))
def train(
    corpus: flags.Corpus = None,
    *,
    source: flags.Source = None,
    target: flags.Target = None,
    pairs: flags.Pairs = None,
    validation_source: flags.ValidationSource = None,
    validation_target: flags.ValidationTarget = None,
    heads: flags.Heads = None,
    validation_heads: flags.ValidationHeads = None,
    out: flags.Out = None,
    preset: flags.Preset = None,
    depth: flags.Depth = None,
    portable: flags.Portable = False,
    config: flags.Config = None,
    weights: flags.Weights = None,
    tokenizer: flags.Tokenizer = None,
    resume: flags.Resume = None,
    processes: flags.Processes = None,
    tensorboard: flags.TensorBoard = None,
    as_json: flags.AsJson = False,
    given: Given,
) -> None:
    """Train a language model on text of your own, or a translation model on sentences and their translations.

    The text is tokenized first (the tokens are kept for the next time) and a tenth of it is held out; the checkpoint
    with the lowest loss on that is the run's best. Ctrl-C saves; --resume goes on exactly where the run stopped.

    A preset sets all of the following options, a TOML file changes them, then the environment (LM_STEPS for --steps),
    and flags win over all of these. Tables and keys of the file are those of a run's config.json. The defaults shown
    are those of the preset tiny; translation starts from the preset translation.

    Examples:
      lm train book.txt
      lm train book.txt --budget 10m
      lm train texts/ --preset small --epochs 3 -o runs/novel
      lm train letters.txt --from runs/novel --steps 200 --learning-rate 3e-4 -o runs/letters
      lm train questions.jsonl --supervised --from runs/novel --epochs 3 -o runs/answers
      lm train book.txt --objective masked -o runs/masked
      lm train --source train.en --target train.de --budget 10m -o runs/german
      lm train --resume runs/novel
      lm train texts/ --preset gpt2 --processes 8
    """
    pair_files = PairFiles(
        source or (), target or (), pairs or (), validation_source, validation_target, heads or (), validation_heads
    )
    new = NewRun(out, preset, depth, portable, config, weights, tokenizer)
    request = Request(TrainingFiles(corpus or (), pair_files), new, resume)
    request.check()
    is_launched = launched.by_another()
    together = launched.size() if is_launched else max(launched.size(), processes or 1)
    given.refuse_without_effect("processes", processes=together, is_launched=is_launched)
    if others := _to_start(processes):
        from cli.training import launching

        raise typer.Exit(launching.launch(given.arguments, processes=others))
    launched.quieten()
    from cli.training import running

    running.run(request, given, tensorboard=tensorboard, as_json=as_json)
