"""Entry point of `lm` and `python -m cli`; handles Ctrl-C also while the rest is being imported."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys


def main() -> None:
    """Run the command line of this process; Ctrl-C ends it silently at any moment, with exit code 130."""
    exit_codes: list[int] = []
    if not atexit._ncallbacks():  # exit functions are called in reverse order: this one last
        atexit.register(_skip_teardown, exit_codes)
    try:
        from cli.main import main as run

        run()
    except KeyboardInterrupt:
        exit_codes.append(130)
    except SystemExit as ended:
        exit_codes.append(int(ended.code or 0))
    sys.exit(exit_codes[0])


def _skip_teardown(exit_codes: list[int]) -> None:
    """End the process with its exit code once exit functions have been called and threads joined."""
    if exit_codes:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(exit_codes[0])
    gc.unfreeze()


if __name__ == "__main__":
    main()
