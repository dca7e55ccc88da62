"""Runs each test file in a process of its own, with an empty and with a filled cache of the user.

    python -m tests.alone [--cache empty filled] [--jobs N] [FILE …]

No test may need another file's, nor what the user has in a cache: the filled one is that of a home in which
`lm compile` was run, which takes minutes. Prints a line for each file that fails, with the end of its output. The exit
code is 1 if any does.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
NO_TESTS = 5


def home(folder: Path, *, is_filled: bool) -> dict[str, str]:
    """Return an environment with a home of its own, in which `lm compile` was run if it is to be filled."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LM_", "XDG_", "NUMBA_"))}
    environment = {**kept, "HOME": str(folder), "USERPROFILE": str(folder)}
    if is_filled:
        subprocess.run([sys.executable, "-m", "cli.main", "compile"], cwd=ROOT, env=environment, check=True)
    return environment


def failure(file: Path, environment: dict[str, str]) -> str | None:
    """Return what the tests of a file printed last if they fail, else None."""
    command = [sys.executable, "-m", "pytest", "-n0", "--no-header", "--tb=short", "-mnot slow", str(file)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return None if done.returncode in {0, NO_TESTS} else done.stdout[-2000:] + done.stderr[-1000:]


def main() -> int:
    """Run the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="default: all in tests/")
    parser.add_argument("--cache", nargs="+", choices=["empty", "filled"], default=["empty", "filled"])
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    files = arguments.files or sorted((ROOT / "tests").rglob("test_*.py"))
    failed = 0
    for cache in arguments.cache:
        with tempfile.TemporaryDirectory(prefix="lm-home-") as folder, ThreadPoolExecutor(arguments.jobs) as pool:
            environment = home(Path(folder), is_filled=cache == "filled")
            told = pool.map(lambda file, environment=environment: failure(file, environment), files)
            for file, output in zip(files, told, strict=True):
                if output is not None:
                    failed += 1
                    print(f"FAILED {file} ({cache} cache)\n{output}", flush=True)
            changed = sorted(str(path) for path in Path(folder).rglob("*") if path.is_file())
            if cache == "empty" and changed:
                failed += 1
                print(f"FAILED: tests wrote into the user's home: {changed[:10]}", flush=True)
    print(f"{len(files)} files with {' and '.join(arguments.cache)} caches: {failed} failures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
