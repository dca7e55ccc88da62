"""Formats that runs are exported to, and their dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from lm.config.options import CheckedConfig, option
from lm.errors import UsageError

ExportFormat = Literal["huggingface", "peft", "gguf", "ctranslate2"]
ExportDtype = Literal["float32", "float16", "bfloat16", "q8_0", "int16", "int8", "int8_float16", "int8_bfloat16"]


class Exporter(NamedTuple):
    """The exporter of a format.

    Attributes:
        function: its module and name; takes the run, the path to write and an `ExportConfig`, and returns notes on the
            result, by topic.
        dtypes: that matrices can have, the default first; empty if they keep the run's.
    """

    function: str
    dtypes: tuple[ExportDtype, ...] = ()


EXPORTERS: Mapping[ExportFormat, Exporter] = {
    "huggingface": Exporter("lm.interop.hugging_face.exporting:export_with_report"),
    "peft": Exporter("lm.interop.hugging_face.peft:export_with_report"),
    "gguf": Exporter("lm.interop.gguf.exporting:export_with_report", ("float32", "float16", "q8_0")),
    "ctranslate2": Exporter(
        "lm.interop.ctranslate2.exporting:export_with_report",
        ("float32", "float16", "bfloat16", "int16", "int8", "int8_float16", "int8_bfloat16"),
    ),
}
"""The exporter of each format."""


@dataclass(frozen=True)
class ExportConfig(CheckedConfig):
    """The format that a run is exported to, and the dtype of its matrices."""

    to: ExportFormat = option("huggingface", "Target system; peft: adapters alone.")
    type: ExportDtype = option(
        None, "Dtype of matrices, for gguf and ctranslate2.", default_text="float32; huggingface the run's"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        dtypes = EXPORTERS[self.to].dtypes
        if self.type is None:
            object.__setattr__(self, "type", dtypes[0] if dtypes else None)
        if self.type is None or self.type in dtypes:
            return
        known = ", ".join(dtypes)
        instead = f"choose from {known}" if known else "matrices keep the dtype of the run"
        raise UsageError(f"{self.to} has no dtype {self.type!r}; {instead}", settings=("type",))
