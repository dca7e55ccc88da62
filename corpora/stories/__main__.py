"""`python -m corpora.stories [FOLDER]`: write the corpus, by default next to this file."""

import sys
from pathlib import Path

from .corpus import write


def main(arguments: list[str]) -> int:
    """Write `train.txt` and `heldout.txt`, and print their paths."""
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        sys.stderr.write("usage: python -m corpora.stories [FOLDER]\n")
        return 2
    folder = Path(arguments[0]) if arguments else Path(__file__).parent
    for path in write(folder):
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
