"""The door of `lm` and of `python -m cli`, open while the rest is still being imported."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line of this process; Ctrl-C ends it without a word at any moment, with exit code 130."""
    try:
        from cli.interrupts import outlast_imports

        outlast_imports()
        from cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
