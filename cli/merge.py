"""`lm merge`: merge adapters into their base weights; `lm average`: average the weights of checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.arguments import NewRun
from cli.console import print_labelled
from cli.loading import RunPath, run_argument
from lm.run_folder import find_checkpoint, list_checkpoints


def merge(run: RunPath, *, out: NewRun) -> None:
    """Merge LoRA adapters into the weights of their base run.

    The checkpoints of `lm train --lora` hold only adapters. That of the merged run holds all weights; it computes
    the same, and can be fine-tuned in full with `lm train --from`.

    Examples:
      lm train letters.txt --from runs/novel --lora 8 -o runs/letters
      lm merge runs/letters -o runs/letters-merged
    """
    from lm.training.derived_runs import write_merged_run

    folder = write_merged_run(run, out)
    print_labelled("wrote", str(folder))


Checkpoints = Annotated[
    list[Path],
    run_argument("RUN…", "A run, of which the latest are averaged, or checkpoints."),
]
Last = Annotated[int, typer.Option("--last", metavar="N", min=2, help="Number of latest checkpoints.")]


def average(runs: Checkpoints, *, out: NewRun, last: Last = 5) -> None:
    """Average the weights of several checkpoints.

    The average often predicts better than each of them. The result is a run of its own and can be used like any other.
    Train with --set training.keep_checkpoints=N and --set training.checkpoint_every=N to have enough checkpoints;
    training.ema averages while training instead.

    Examples:
      lm average runs/translate --last 5 -o runs/averaged
      lm average runs/a/checkpoints/step-800 runs/a/checkpoints/step-900 -o runs/averaged
    """
    from cli.console import print_note
    from lm.training.derived_runs import average_checkpoints

    found = [find_checkpoint(path) for path in runs]
    chosen = list_checkpoints(runs[0])[-last:] if len(runs) == 1 else found
    folder = average_checkpoints(chosen, out)
    print_note(f"average of {', '.join(path.name for path in chosen)}")
    print_note(f"wrote {folder}")
