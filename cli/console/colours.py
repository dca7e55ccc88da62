"""Colours that are readable on dark and light backgrounds.

They are indices of the 256-colour palette from 16 on, because the first sixteen depend on the user's theme.
"""

from __future__ import annotations

import os
import sys

BLUE, ORANGE, MAGENTA, GREEN, VIOLET, OCHRE = 32, 166, 162, 28, 98, 136
LINES = (BLUE, ORANGE, MAGENTA, GREEN, VIOLET, OCHRE)
"""Colours of curves and bars, of medium lightness; neighbours are distinguishable with colour blindness."""

RESET = "\x1b[0m"
BLACK, WHITE = 16, 231
BANDS = (117, 222)
"""Light blue and light orange, as backgrounds of black text."""

BARS = {
    "bar.back": "dim", "bar.complete": f"color({BLUE})", "bar.finished": f"color({GREEN})",
    "bar.pulse": f"color({BLUE})", "progress.data.speed": "none", "progress.download": "none",
    "progress.elapsed": "none", "progress.percentage": "none", "progress.remaining": "none",
    "progress.spinner": f"color({GREEN})",
}  # fmt: skip
"""Rich styles of progress bars; its defaults depend on the theme."""


def is_colour_enabled() -> bool:
    """Whether stdout is coloured: by NO_COLOR and FORCE_COLOR, else if it is a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (sys.stdout.isatty() and os.environ.get("TERM") != "dumb")
