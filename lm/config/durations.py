"""Lengths of time as a person writes them: 90s, 10m, 1h30m."""

from __future__ import annotations

import re

from lm.errors import UsageError

_UNITS = {"h": 3600, "m": 60, "s": 1}
_FORM = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")


def seconds(text: str) -> float:
    """90s, 10m or 1h30m in seconds; UsageError for anything else, and for nothing at all."""
    parts = _FORM.fullmatch(text.strip())
    total = (
        sum(float(part) * unit for part, unit in zip(parts.groups("0"), _UNITS.values(), strict=True)) if parts else 0
    )
    if not total:
        raise UsageError(f"a time is written like 90s, 10m or 1h30m, not {text!r}")
    return total
