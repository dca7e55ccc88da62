"""What a preset is: a row of values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Preset:
    """The values that differ from the defaults of the configs, by section, and a summary for `lm info`."""

    summary: str
    model: Values = field(default_factory=dict)
    tokenizer: Values = field(default_factory=dict)
    data: Values = field(default_factory=dict)
    parallel: Values = field(default_factory=dict)
    training: Values = field(default_factory=dict)
