"""Formats that runs are exported to, and their dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lm.config.settings import DERIVED, Config
from lm.errors import UsageError

ExportFormat = Literal["huggingface", "peft", "gguf", "ctranslate2"]
ExportDtype = Literal["float32", "float16", "bfloat16", "q8_0", "int16", "int8", "int8_float16", "int8_bfloat16"]


DTYPES: Mapping[ExportFormat, tuple[ExportDtype, ...]] = {
    "gguf": ("float32", "float16", "q8_0"),
    "ctranslate2": ("float32", "float16", "bfloat16", "int16", "int8", "int8_float16", "int8_bfloat16"),
}
"""Dtypes that matrices can have, the default first; other formats keep the run's."""


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
        dtypes = DTYPES.get(self.to, ())
        if self.type is None and dtypes:
            object.__setattr__(self, "type", dtypes[0])
        if self.type is not None and self.type not in dtypes:
            raise UsageError(f"type: {self.to} has {', '.join(dtypes) or 'the dtype of the run'}, not {self.type}")
