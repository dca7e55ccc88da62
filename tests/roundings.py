"""Runs the numerical tests as other processors, libraries and thread counts round.

    python -m tests.roundings [--all] [pytest options]

By default one case of each numerical test runs under the setting that differs most, in minutes; --all runs all cases
of them under every setting. Numerical tests are those of modules that use `tests.tolerances`. Settings that this
processor lacks are left out, and named. The exit code is 1 if any test fails.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping

from torch.backends import cpu

ROUNDINGS: dict[str, Mapping[str, str]] = {
    "MKL compatible": {"MKL_CBWR": "COMPATIBLE"},
    "MKL AVX2": {"MKL_CBWR": "AVX2"},
    "MKL AVX-512": {"MKL_CBWR": "AVX512"},
    "ATen default": {"ATEN_CPU_CAPABILITY": "default"},
    "ATen AVX2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "one thread": {"TEST_THREADS": "1"},
    "two threads": {"TEST_THREADS": "2"},
}
QUICK: dict[str, Mapping[str, str]] = {
    "MKL compatible, ATen default, one thread": {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "default"},
}
NEEDS = {"AVX2": ("AVX2", "AVX512"), "avx2": ("AVX2", "AVX512"), "AVX512": ("AVX512",)}
"""What the processor must be capable of for the value of a variable."""

PARALLEL = ("-n", "auto", "--dist", "loadscope", "--no-loadscope-reorder")


def is_possible(setting: Mapping[str, str]) -> bool:
    """Return whether this processor can round so."""
    return all(cpu.get_cpu_capability() in NEEDS[value] for value in setting.values() if value in NEEDS)


def main() -> int:
    """Run the tests under each setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="all cases, each setting alone")
    arguments, options = parser.parse_known_args()
    failed = []
    for name, setting in (ROUNDINGS if arguments.all else QUICK).items():
        if not is_possible(setting):
            print(f"== {name}: not on this processor", flush=True)
            continue
        print(f"== {name}: {' '.join(f'{variable}={value}' for variable, value in setting.items())}", flush=True)
        command = [sys.executable, "-m", "pytest", "-m", "numerical and not slow", *PARALLEL]
        command += [] if arguments.all else ["--cases", "1"]
        if subprocess.run([*command, *options], env={**os.environ, **setting}).returncode:
            failed.append(name)
    print("\n".join(f"failed: {name}" for name in failed) or "passed under all of them")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
