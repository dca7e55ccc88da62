"""Colours that read on a dark background and on a light one.

They are numbers out of 256: the first sixteen are left to the user's theme, in which yellow may be next to invisible
on white and blue on black, but those from 16 on are the same everywhere. Text without a colour of its own is in the
theme's, and faint where it matters less.
"""

from __future__ import annotations

import os
import sys

BLUE, ORANGE, MAGENTA, GREEN, VIOLET, OCHRE = 32, 166, 162, 28, 98, 136
LINES = (BLUE, ORANGE, MAGENTA, GREEN, VIOLET, OCHRE)
"""Colours of curves and bars, neither light nor dark; the colour-blind can tell neighbours apart too."""

RESET = "\x1b[0m"
BLACK, WHITE = 16, 231
BANDS = (117, 222)
"""Light blue and light orange: backgrounds of black text."""

BARS = {
    "bar.back": "dim", "bar.complete": f"color({BLUE})", "bar.finished": f"color({GREEN})",
    "bar.pulse": f"color({BLUE})", "progress.data.speed": "none", "progress.download": "none",
    "progress.elapsed": "none", "progress.percentage": "none", "progress.remaining": "none",
    "progress.spinner": f"color({GREEN})",
}  # fmt: skip
"""Rich's styles of progress bars; its own are cyan, green and red of the theme, and a bar of dark grey."""


def in_colour() -> bool:
    """Whether stdout takes colours: as NO_COLOR and FORCE_COLOR say, else if it is a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (sys.stdout.isatty() and os.environ.get("TERM") != "dumb")
