"""`lm merge`: merge adapters into their base weights, as a plain run."""

from __future__ import annotations

from cli.arguments import NewRun
from cli.console.text import print_labelled
from cli.loading import RunPath


def merge(run: RunPath, *, out: NewRun) -> None:
    """Merge LoRA adapters into the weights of their base run.

    A run of `lm train --lora` holds only adapters, and needs its base run wherever it is used. The merged run is
    self-contained, computes the same, and can be fine-tuned in full with `lm train --from`.

    Examples:
      lm train letters.txt --from runs/novel --lora 8 -o runs/letters
      lm merge runs/letters -o runs/letters-merged
    """
    from lm import checkpoint

    folder = checkpoint.write_merged_run(run, out)
    print_labelled("wrote", str(folder))
