"""Runs the numerical tests on aarch64, emulated by qemu's user mode; no part of the tests that CI runs.

    python -m tests.aarch64 [--folder DIR] [pytest arguments]

Needs `qemu-aarch64` (Debian: qemu-user; 7.2 crashes in torch, 11.1 works) and `debootstrap`. Once, it also needs the
network: Debian's Python and the wheels of constraints.txt for aarch64 are put into a folder, some GB with the CUDA
libraries that torch loads. Emulated code runs some thirty times slower, so that without arguments only the tests in
TESTS run, two cases of each. Python cannot start other processes there: tests that do fail.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEBIAN, PYTHON = "bookworm", "3.11"
PACKAGES = ("torch", "numpy", "numba", "llvmlite", "tokenizers", "safetensors", "sacrebleu", "typer", "rich", "pytest")
PLATFORMS = (28, 27, 25, 18, 17)
"""Of glibc, whose second number wheels are named by."""

TESTS = (
    "tests/lm/kernels", "tests/test_tolerances.py", "tests/lm/model/test_linear.py", "tests/lm/model/test_loss.py",
    "tests/lm/model/test_attention.py", "tests/lm/evaluation/test_scoring.py",
)  # fmt: skip


def prepared(folder: Path) -> None:
    """Put Python and the packages into a folder, unless they are there."""
    root, packages = folder / "root", folder / "site"
    if not (root / f"usr/bin/python{PYTHON}").is_file():
        include = f"--include=python{PYTHON},libgomp1"
        command = ["debootstrap", "--arch=arm64", "--foreign", "--variant=minbase", include, DEBIAN, str(root)]
        subprocess.run(command, check=True)
        for archive in sorted((root / "var/cache/apt/archives").glob("*.deb")):
            subprocess.run(["dpkg", "-x", str(archive), str(root)], check=True)
    identity = root / "sys/devices/system/cpu/cpu0/regs/identification/midr_el1"
    identity.parent.mkdir(parents=True, exist_ok=True)
    identity.write_text("0x00000000413fd0c1\n")  # of a Neoverse N1, which oneDNN asks for
    if not (packages / "torch").is_dir():
        abis = [f"--abi={abi}" for abi in (f"cp{PYTHON.replace('.', '')}", "abi3", "none")]
        platforms = [f"--platform=manylinux_2_{number}_aarch64" for number in PLATFORMS]
        target = ["--only-binary=:all:", f"--python-version={PYTHON}", "--implementation=cp", *abis, *platforms]
        target += ["--platform=manylinux2014_aarch64", "--platform=any", f"--target={packages}"]
        command = [sys.executable, "-m", "pip", "install", "--no-compile", "-c", str(ROOT / "constraints.txt"), *target]
        subprocess.run([*command, *PACKAGES], check=True)


def main() -> int:
    """Prepare, and run pytest emulated."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser.add_argument("--folder", type=Path, default=cache / "lm-aarch64", help="where Python and packages are put")
    given, arguments = parser.parse_known_args()
    folder = given.folder.resolve()
    prepared(folder)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder / "site"), str(ROOT)))}
    environment |= {"PYTHONHOME": str(folder / "root/usr"), "OPENBLAS_NUM_THREADS": "1"}
    qemu = shutil.which("qemu-aarch64") or "qemu-aarch64-static"
    python = [qemu, "-cpu", "neoverse-n1", "-L", str(folder / "root"), str(folder / f"root/usr/bin/python{PYTHON}")]
    pytest = ["-m", "pytest", "-pno:cacheprovider", "-pno:xdist", "-m", "numerical and not slow", "-v"]
    chosen = arguments or [*TESTS, "--cases", "2"]
    return subprocess.run([*python, *pytest, *chosen], cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
