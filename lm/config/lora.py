"""Low-rank adapters: what is trained beside the weights of a run that stay as they are."""

from __future__ import annotations

from dataclasses import dataclass

from lm.config.model_fields import LONGEST
from lm.config.options import CheckedConfig, did_you_mean, option
from lm.errors import UsageError

LAYER_KINDS = ("attention", "feed-forward")
"""The kinds of layers that can have adapters."""


@dataclass(frozen=True)
class LoraConfig(CheckedConfig):
    """Low-rank adapters beside the matrices of a run, its base, whose own weights are frozen; without a rank, none.

    Source: Hu et al. 2021 (LoRA).
    """

    rank: int = option(
        None,
        "LoRA: rank of the adapters trained on the --from run.",
        minimum=1,
        maximum=LONGEST,
        flag="--lora",
        unit="RANK",
    )
    on: str = option(
        ",".join(LAYER_KINDS),
        "LoRA: layers with adapters.",
        flag="--lora-on",
        unit="LAYERS",
        advanced=True,
        requires="lora.rank",
    )
    alpha: float | None = option(
        None, "LoRA alpha; adapters are scaled by alpha / rank.", minimum=0, flag="--lora-alpha",
        default_text="2 rank", requires="lora.rank")  # fmt: skip
    dropout: float = option(
        0.0, "LoRA: dropout.", minimum=0, maximum=0.99, flag="--lora-dropout", unit="RATE", requires="lora.rank"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for kind in self.kinds:
            if kind not in LAYER_KINDS:
                hint = did_you_mean(kind, LAYER_KINDS)
                known = ", ".join(LAYER_KINDS)
                raise UsageError(f"there are no adapters on {kind!r}{hint}; choose from {known}", settings=("lora_on",))

    def __bool__(self) -> bool:
        return self.rank is not None

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(kind.strip() for kind in self.on.split(","))

    @property
    def scale(self) -> float:
        """Return the scale of the adapters' output: alpha / rank, where alpha defaults to twice the rank."""
        return 2.0 if self.alpha is None else self.alpha / self.rank
