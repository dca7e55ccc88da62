"""Colours that are readable on dark and light backgrounds.

They are indices of the 256-colour palette from 16 on, because the first sixteen depend on the user's theme.
"""

from __future__ import annotations

import os
import sys

LINES = (32, 166, 162, 28, 98, 136)  # blue, orange, magenta, green, violet, ochre
"""Colours of curves, of medium lightness; neighbours are distinguishable with colour blindness."""

RESET = "\x1b[0m"


def is_colour_enabled() -> bool:
    """Whether stdout is coloured: by NO_COLOR and FORCE_COLOR, else if it is a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (sys.stdout.isatty() and os.environ.get("TERM") != "dumb")
