"""How several processes hold what they train together."""

from __future__ import annotations

from dataclasses import dataclass

from lm.config.options import Checked, option
from lm.errors import UsageError


@dataclass(frozen=True)
class DistributionConfig(Checked):
    """How several processes hold a model that they train together; a run that goes on may change it."""

    shard: bool = option(
        False,
        "With several processes: share weights, gradients and the optimizer's state out among them, where each would "
        "have all of them (FSDP); each block is gathered when it is its turn.",
    )
    offload: bool = option(
        False, "With --shard on GPUs: keep the shares in the memory of the machine, and step the optimizer there."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.offload and not self.shard:
            raise UsageError("--offload is for the shares of --shard: give that too, or leave it out")
