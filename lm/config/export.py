"""Formats that runs are exported to, and their dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from lm.config.settings import DERIVED, Config
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
class ExportConfig(Config):
    """The format that a run is exported to, and the dtype of its matrices.

    Settings:
        to: Target system; peft: adapters alone.
        type: Dtype of matrices, for gguf and ctranslate2; default float32.
    """

    to: ExportFormat = "huggingface"
    type: ExportDtype = DERIVED

    def __post_init__(self) -> None:
        dtypes = EXPORTERS[self.to].dtypes
        if self.type is None:
            object.__setattr__(self, "type", dtypes[0] if dtypes else None)
        if self.type is not None and self.type not in dtypes:
            raise UsageError(f"type: {self.to} has {', '.join(dtypes) or 'the dtype of the run'}, not {self.type}")
