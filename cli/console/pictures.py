"""Pictures drawn by matplotlib, which need not be installed."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from lm.errors import missing_packages
from lm.files import atomic_write_bytes


def load_pyplot() -> Any:
    """Import pyplot, set up for files; raises InputError if matplotlib is not installed."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise missing_packages("a picture", "matplotlib") from None
    mpl.use("Agg")
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # it lists every missing font weight
    from matplotlib import pyplot

    return pyplot


def save_figure(pyplot: Any, figure: Any, path: Path) -> None:
    """Write a figure as a .png or .svg, and close it."""
    with atomic_write_bytes(path) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=150)
    pyplot.close(figure)
