"""Commands as a user types them."""

import subprocess
import sys


def lm(*words: str) -> str:
    """Return what a command writes to stdout; its notes go to the terminal."""
    print("$ lm", *words, file=sys.stderr, flush=True)
    return subprocess.run([sys.executable, "-m", "cli", *words], check=True, stdout=subprocess.PIPE, text=True).stdout
