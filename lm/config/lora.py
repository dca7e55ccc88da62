"""Low-rank adapters: what is trained beside the weights of a run that stay as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from lm.config.settings import DERIVED, Config, Count, Positive, Rate
from lm.errors import UsageError

LAYER_KINDS = ("attention", "feed-forward")
"""The kinds of layers that can have adapters."""


@dataclass(frozen=True)
class LoraConfig(Config):
    """Low-rank adapters beside the matrices of a run, its base, whose own weights are frozen; without a rank, none.

    Source: Hu et al. 2021 (LoRA).

    Settings:
        rank: LoRA: rank of the adapters trained on the --from run.
        on: LoRA: layers with adapters.
        alpha: LoRA alpha; adapters are scaled by alpha / rank; default 2 rank.
        dropout: LoRA: dropout.
    """

    rank: Count = DERIVED
    on: Annotated[str, "lora.rank"] = ",".join(LAYER_KINDS)
    alpha: Annotated[Positive | None, "lora.rank"] = None
    dropout: Annotated[Rate, "lora.rank"] = 0.0

    def __post_init__(self) -> None:
        for kind in self.kinds:
            if kind not in LAYER_KINDS:
                raise UsageError(f"lora.on: no adapters on {kind!r}; choose from {', '.join(LAYER_KINDS)}")

    def __bool__(self) -> bool:
        return self.rank is not None

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(kind.strip() for kind in self.on.split(","))

    @property
    def scale(self) -> float:
        """Return the scale of the adapters' output: alpha / rank, where alpha defaults to twice the rank."""
        return 2.0 if self.alpha is None else self.alpha / self.rank
