"""Tests the newest versions of what `lm` is built on, each in an environment of its own, beside the pinned versions.

    python -m tests.newest [--only NAME …] [--folder DIR] [--largest GB] [-- pytest arguments]

No part of the tests that CI runs; it needs the network. One of PACKAGES is taken in its newest version, or in the
version that it names, with those that follow it, and everything else as in constraints.txt. Where that would take more
than `--largest` GB of wheels, as CUDA does where there are no wheels for the CPU alone, it is reported as not run.
Warnings are no failures here: a new version may deprecate what a pinned one has no other name for.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "pins": (),
    "torch": ("torch",),
    "tokenizers": ("tokenizers", "transformers", "peft"),
    "transformers": ("transformers", "tokenizers", "peft"),
    "transformers-5.0": ("transformers==5.0.0", "tokenizers", "huggingface-hub", "peft"),
    "numpy": ("numpy", "numba", "llvmlite"),
}
"""What is tested, and which pins are dropped or replaced for it: its own, and those of packages that depend on it."""
ONLY: Mapping[str, str] = {"transformers-5.0": "tests/lm/interop/hugging_face/test_custom_code.py"}
"""The tests of what is promised of a version, if not all."""

CPU_WHEELS = "https://download.pytorch.org/whl/cpu"


def constraints(free: Sequence[str]) -> str:
    """The lines of constraints.txt without those of some packages, or with another version of them."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    names = {pin.partition("==")[0] for pin in free}
    kept = [line for line in lines if line.partition("==")[0] not in names]
    return "".join(f"{line}\n" for line in [*kept, *(pin for pin in free if "==" in pin)])


def install_command(python: Path, pins: Path, *options: str) -> list[str]:
    """What installs `lm` and all that its tests need."""
    command = [str(python), "-m", "pip", "install", "--quiet", "--upgrade", "--upgrade-strategy", "eager"]
    index = ["--extra-index-url", CPU_WHEELS] if has_cpu_wheels() else []
    return [*command, *index, "-c", str(pins), *options, f"{ROOT}[dev]"]


@cache
def has_cpu_wheels() -> bool:
    """Whether the index of wheels for the CPU can be reached; pip would wait for it for minutes."""
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{CPU_WHEELS}/", timeout=10):
        return True
    print(f"{CPU_WHEELS}: out of reach, so that torch is PyPI's", file=sys.stderr)
    return False


def wheels(report: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """The version and address of each package that pip would install, by its report."""
    return {
        item["metadata"]["name"].lower(): (item["metadata"]["version"], item["download_info"]["url"])
        for item in report["install"]
        if "dir_info" not in item["download_info"]
    }


def total_bytes(urls: Iterable[str]) -> int:
    """The size of some files, as their servers tell it."""
    total = 0
    for url in urls:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=60) as answer:
            total += int(answer.headers["Content-Length"] or 0)
    return total


def result(name: str, folder: Path, arguments: Sequence[str], *, largest: float) -> tuple[str, bool]:
    """Install and test; gives a line that says what came of it, and whether that is no failure.

    Args:
        name: one of PACKAGES.
        folder: where environments are made.
        arguments: of pytest.
        largest: GB of wheels, at most.
    """
    place, pins = folder / name, folder / f"{name}.txt"
    python = place / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    pins.write_text(constraints(PACKAGES[name]), encoding="utf-8")
    planned = subprocess.run(
        install_command(python, pins, "--dry-run", "--ignore-installed", "--report", "-"),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if planned.returncode:
        said = planned.stderr.strip().splitlines()
        return f"not run: {next((line for line in said if line.startswith('ERROR')), said[-1])}", True
    found = wheels(json.loads(planned.stdout))
    version = "" if name == "pins" else f"{found[name.partition('-')[0]][0]}: "
    if (size := total_bytes(url for _, url in found.values()) / 1e9) > largest:
        return f"{version}not run: {size:.1f} GB of wheels, of which some are {_largest(found)}", True
    subprocess.run(install_command(python, pins), check=True)
    default = [ONLY.get(name, "tests"), "-m", "not slow", "-n", "auto", "--dist", "loadscope", "--no-loadscope-reorder"]
    tests = arguments or default
    done = subprocess.run(
        [str(python), "-m", "pytest", "-W", "default", *tests], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    sys.stderr.write(done.stdout)
    summary = next((line for line in reversed(done.stdout.splitlines()) if re.search(r"\d+ \w+", line)), "no tests")
    return f"{version}{summary.strip('= ')}", done.returncode == 0


def _largest(found: Mapping[str, tuple[str, str]]) -> str:
    """Packages of CUDA among some, or the first ones."""
    of_cuda = [name for name in found if re.match("nvidia|cuda|triton", name)]
    return ", ".join((of_cuda or list(found))[:3])


def main() -> int:
    """A line for each environment; 1 if tests failed in one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser.add_argument("--only", nargs="+", choices=PACKAGES, default=list(PACKAGES), help="what is tested")
    parser.add_argument("--folder", type=Path, default=cache / "lm-newest", help="where environments are made")
    parser.add_argument("--largest", type=float, default=1.0, metavar="GB", help="of wheels for an environment")
    given, arguments = parser.parse_known_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    arguments = [argument for argument in arguments if argument != "--"]
    failed = 0
    for name in given.only:
        line, is_good = result(name, given.folder, arguments, largest=given.largest)
        print(f"{name:<13} {line}", flush=True)
        failed += not is_good
    return min(1, failed)


if __name__ == "__main__":
    sys.exit(main())
