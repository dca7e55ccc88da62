"""Results as one Markdown table or as JSON."""

import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tests.benchmarks.comparison import Claim, Result, Spread, gemm_fractions, speed_ups, speeds

Results = Sequence[tuple[Claim, Sequence[Result]]]
ROOT = Path(__file__).parents[2]
_PACKAGES = ("torch", "numba", "transformers", "peft", "ctranslate2", "tokenizers")
_COLUMNS = ("claim", "work", "threads", "system", "dtype", "median (range)", "lm is faster", "% of GEMM", "peak memory")


@dataclass(frozen=True)
class Machine:
    """Where and with what was measured.

    Attributes:
        date: of the measurement.
        processor: its name.
        cores: that this process may use.
        memory_bytes: of the machine.
        load: processes that ran or waited in the minute before the measurement, on average.
        instructions: of torch.
        versions: of `lm`, Python and the installed packages and programs, by name.
    """

    date: str
    processor: str
    cores: int
    memory_bytes: int
    load: float
    instructions: str
    versions: dict[str, str]

    def __str__(self) -> str:
        processor = f"{self.processor}, {self.cores} core{'s' * (self.cores > 1)} ({self.instructions})"
        versions = ", ".join(" ".join(each) for each in self.versions.items())
        return (
            f"- {self.date}, load before: {self.load:.1f}\n"
            f"- {processor}, {self.memory_bytes / 1e9:.0f} GB, no GPU\n"
            f"- {versions}"
        )


def describe_machine(*, instructions: str) -> Machine:
    """Describe this machine and its software, now."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    date = time.strftime("%Y-%m-%d")
    return Machine(date, processor_name(), cores, memory, os.getloadavg()[0], instructions, dict(_versions()))


def processor_name() -> str:
    """Return the name in /proc/cpuinfo; as virtual machines often have none of use, with family and model."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.is_file():
        return platform.processor() or platform.machine()
    found = dict(re.findall(r"^(model name|cpu family|model)\s*: (.*)$", cpuinfo.read_text(), re.MULTILINE))
    name = found.get("model name", platform.machine())
    return f"{name} (family {found['cpu family']}, model {found['model']})" if "model" in found else name


def _versions() -> Iterator[tuple[str, str]]:
    commit = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True)
    yield "lm", f"{version('lm-toolkit')} {commit.stdout.strip()}".strip()
    yield "Python", platform.python_version()
    for package in _PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            continue
    try:
        completed = subprocess.run(["llama-bench", "--version"], capture_output=True, text=True)
    except FileNotFoundError:
        return
    if found := re.search(r"version: (.*)", completed.stdout + completed.stderr):
        yield "llama.cpp", found[1]


def markdown(machine: Machine, results: Results) -> str:
    """Return what was measured where, and the table."""
    rows = [row for claim, found in results for row in _rows(claim, found)]
    lines = [_line(_COLUMNS), "|" + "-|" * len(_COLUMNS), *map(_line, rows)]
    return "\n".join([str(machine), "", *lines])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _rows(claim: Claim, results: Sequence[Result]) -> Iterator[tuple[str, ...]]:
    ours = results[0]
    for result in results:
        first = (claim.name, claim.title, str(claim.threads)) if result is ours else ("", "", "")
        system = result.system.name if result is not ours else f"**{result.system.name}**"
        if result.problem is not None:
            yield (*first, system, result.system.dtype, result.problem, "", "", "")
            continue
        speed = f"{_format(speeds(claim, result))} {claim.unit}"
        ratio = "" if result is ours else _format_ratio(speed_ups(ours, result))
        fractions = gemm_fractions(ours, result) if result.system.dtype == ours.system.dtype else None
        gemm = "" if fractions is None else f"{fractions.median:.1%}"
        yield (*first, system, result.system.dtype, speed, ratio, gemm, f"{result.peak_bytes / 1e6:,.0f} MB")


def _format(found: Spread) -> str:
    digits = 0 if found.median >= 100 else 1 if found.median >= 10 else 2
    median, low, high = (f"{value:,.{digits}f}" for value in found)
    return f"{median} ({low}–{high})"


def _format_ratio(found: Spread) -> str:
    median, low, high = (f"{value:.2f}" for value in found)
    return f"**{median}** ({low}–{high})"


def as_json(machine: Machine, results: Results) -> str:
    """Return the machine and all measurements as one object."""
    claims = [_claim_values(claim, found) for claim, found in results]
    return json.dumps({"machine": vars(machine), "claims": claims}, ensure_ascii=False, indent=1)


def _claim_values(claim: Claim, results: Sequence[Result]) -> dict[str, Any]:
    return {
        "claim": claim.name, "work": claim.title, "threads": claim.threads, "unit": claim.unit,
        "systems": [_system_values(claim, results[0], result) for result in results],
    }  # fmt: skip


def _system_values(claim: Claim, ours: Result, result: Result) -> dict[str, Any]:
    values: dict[str, Any] = {"system": result.system.name, "dtype": result.system.dtype, "problem": result.problem}
    if result.problem is None:
        fractions = gemm_fractions(ours, result)
        values |= {
            "seconds": result.seconds, "speed": speeds(claim, result)._asdict(),
            "speed_up_of_lm": speed_ups(ours, result)._asdict(), "flops": ours.flops, "gemm_flops": ours.gemm,
            "gemm_fraction": None if fractions is None else fractions._asdict(), "peak_bytes": result.peak_bytes,
        }  # fmt: skip
    return values
