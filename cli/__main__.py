"""The door of `lm` and of `python -m cli`, open while the rest is still being imported."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from types import FrameType

_SECONDS_TO_TRY_AGAIN = 0.05
_MAIN_THREAD = threading.get_ident()


def main() -> None:
    """Run the command line of this process; Ctrl-C ends it without a word at any moment, with exit code 130."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not ignored, as in the background
        signal.signal(signal.SIGINT, _interrupt)
    try:
        from cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; while torch is imported, wait for the import to end.

    torch imports numpy from C and drops the exceptions of that import: the program would go on, with half of numpy.
    """
    torch = sys.modules.get("torch")
    if getattr(getattr(torch, "__spec__", None), "_initializing", False):
        threading.Timer(_SECONDS_TO_TRY_AGAIN, _interrupt_again).start()
    else:
        raise KeyboardInterrupt


def _interrupt_again() -> None:
    if sys.platform == "win32":
        _thread.interrupt_main()
    else:
        signal.pthread_kill(_MAIN_THREAD, signal.SIGINT)


if __name__ == "__main__":
    main()
