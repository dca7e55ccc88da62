"""How a run is written for another system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from lm.config.options import CheckedConfig, option
from lm.errors import UsageError

ExportSystem = Literal["huggingface", "peft", "gguf", "ctranslate2"]
ExportDtype = Literal["float32", "float16", "bfloat16", "q8_0", "int16", "int8", "int8_float16", "int8_bfloat16"]


class Exporter(NamedTuple):
    """How a run is written for one system.

    Attributes:
        function: its module and name; called with the run, what is to be made, and an `ExportConfig`, it returns what
            there is to say of the result, by topic.
        types: that matrices can be given, the first one unless another is asked for; none where they keep the run's.
    """

    function: str
    types: tuple[ExportDtype, ...] = ()


EXPORTERS: Mapping[ExportSystem, Exporter] = {
    "huggingface": Exporter("lm.interop.hugging_face.exporting:to_hugging_face"),
    "peft": Exporter("lm.interop.hugging_face.peft:to_peft"),
    "gguf": Exporter("lm.interop.gguf.exporting:to_gguf", ("float32", "float16", "q8_0")),
    "ctranslate2": Exporter(
        "lm.interop.ctranslate2.exporting:to_ctranslate2",
        ("float32", "float16", "bfloat16", "int16", "int8", "int8_float16", "int8_bfloat16"),
    ),
}
"""The exporter of each system."""


@dataclass(frozen=True)
class ExportConfig(CheckedConfig):
    """The system that a run is written for, and the type of the numbers."""

    to: ExportSystem = option("huggingface", "Target system; peft: adapters alone.")
    type: ExportDtype = option(
        None, "Dtype of matrices, for gguf and ctranslate2.", default_text="float32; huggingface the run's"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        types = EXPORTERS[self.to].types
        if self.type is None:
            object.__setattr__(self, "type", types[0] if types else None)
        if self.type is None or self.type in types:
            return
        known = ", ".join(types)
        instead = f"choose from {known}" if known else "its numbers stay in the type that the run has them in"
        raise UsageError(f"{self.to} cannot have the type {self.type!r}; {instead}", settings=("type",))
