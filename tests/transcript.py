"""Run the commands of a page and print each with what it writes: `python -m tests.transcript PAGE FOLDER`.

Commands are the lines that begin with "$ ", in order; FOLDER has the files that they read. What a command writes goes
into the page by hand, as pages leave lines out. A command that fails is followed by its exit code.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.report import ROOT


def main() -> None:
    """Run them."""
    page, folder = map(Path, sys.argv[1:])
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in re.findall(r"^ *\$ (.+(?:\\\n.+)*)", page.read_text(encoding="utf-8"), re.MULTILINE):
        print("$", command, flush=True)
        completed = subprocess.run(
            command,
            shell=True,
            cwd=folder,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)},
        )
        if completed.returncode:
            print("exit code", completed.returncode, flush=True)


if __name__ == "__main__":
    main()
