"""How many processes share out the work on a file."""

from __future__ import annotations

from dataclasses import dataclass

from lm.config.options import CheckedConfig, option


@dataclass(frozen=True)
class WorkersConfig(CheckedConfig):
    """How many processes share out the work on a file."""

    processes: int = option(
        1,
        "Worker processes that share out the work on files, each with the model and its share of the threads; changes "
        "the speed, not the result.",
        minimum=1,
        maximum=1024,
    )
