"""Whether the base commit and this tree compute the same: each makes its own runs by its own commands.

    python -m tests.golden.compare [--only PATTERN] [--list]

Results are cached by case and source, so that what has not changed isn't run again. Files on disk, logs, messages and
help are not compared. Exit code 1: a case differs that is not in `EXPECTED`.
"""

import argparse
import hashlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from pathlib import Path

import numpy as np

from tests.golden import cases, execute, flags, probes
from tests.golden.cases import Case
from tests.golden.execute import Record

BASE = "385b2f31"
EXPECTED: Mapping[str, str] = {
    "export/gpt2": "metadata and tensors of a GGUF file have another order; their values are equal",
    "export/llama": "the same",
    "decoding/sampling": "a line of the base computes without a cache, by a flag that is gone: last bits",
    "rows/labels": "the tokens of labels are scored one label after the other: last bits",
    "rows/questions": "completions are summed in reading order: the last bit of a standard error",
}
"""Cases that differ on purpose, and why."""
_TREE = Path(__file__).parents[2]
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
_WORKERS = 2
_DROPPED = "perplexity: macro."
"""Results that the working tree no longer prints: means of files' perplexities."""
_EXIT = ": exit"
"""End of the name of an error in a record."""


def main() -> int:
    """Compare the selected cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="PATTERN", help="regular expression of names of cases")
    parser.add_argument("--list", action="store_true", help="print the cases and their lines")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir(), "lm-golden"), metavar="FOLDER")
    given = parser.parse_args()
    selected = [case for case in cases.cases() if re.search(given.only, case.name)]
    if given.list:
        print("\n".join(f"{case.name}\n    " + "\n    ".join(case.lines) for case in selected))
        return 0
    began = time.perf_counter()
    cases.write_texts(given.cache / "texts")
    base, tree = Side("base", _extract(given.cache), given.cache), Side("tree", _TREE, given.cache)
    for side in (base, tree):
        side.compile(selected)
    failed = []
    with ThreadPoolExecutor(_WORKERS) as pool:
        found = pool.map(lambda case: (case, differences(case, base.record(case), tree.record(case))), selected)
        for case, different in found:
            reason = EXPECTED.get(case.name)
            state = "equal" if not different else "differs" if reason is None else f"differs as expected ({reason})"
            print(f"{state:8} {case.name}", *different[:3], sep="\n         " if different else "", flush=True)
            failed += [case.name] * (state == "differs")
    print(f"{len(selected) - len(failed)} of {len(selected)} cases as expected, {time.perf_counter() - began:.0f} s")
    return 1 if failed else 0


def differences(case: Case, base: Record, tree: Record) -> list[str]:
    """Return a line for each result that differs: its name and the first difference."""
    found = [f"{name}: the base commit fails: {record[0]}" for name, record in base.items() if name.endswith(_EXIT)]
    found += [f"{name}: {record[0]}" for name, record in tree.items() if name.endswith(_EXIT)]
    for name in [*base, *(name for name in tree if name not in base)]:
        if name.endswith(_EXIT) or _DROPPED in name:
            continue
        if name not in base or name not in tree:
            found.append(f"{name}: only in {'the base commit' if name in base else 'this tree'}")
        elif base[name].shape != tree[name].shape:
            found.append(f"{name}: shape {base[name].shape} -> {tree[name].shape}")
        elif (places := np.argwhere(_differs(base[name], tree[name], case.tolerance))).size:
            place = tuple(places[0].tolist())
            found.append(f"{name}{list(place)}: {base[name][place]} -> {tree[name][place]} ({len(places)} differ)")
    return found


def _differs(base: np.ndarray, tree: np.ndarray, tolerance: float) -> np.ndarray:
    if base.dtype.kind != "f" or tree.dtype.kind != "f":
        return base != tree
    return ~np.isclose(tree, base, rtol=tolerance, atol=tolerance / 100, equal_nan=True)


class Side:
    """A tree whose cases are run, with the results that are known."""

    def __init__(self, name: str, root: Path, cache_folder: Path) -> None:
        self.name, self.root, self.cache = name, root, cache_folder
        self._worker = threading.local()

    @cached_property
    def _source(self) -> str:
        code = [Path(execute.__file__).read_text(), str(flags.ENVIRONMENT[self.name])]
        code += [inspect.getsource(probe) for probe in getattr(probes, self.name.upper()).values()]
        if self.name == "tree":
            code.append(Path(flags.__file__).read_text())
        return _hash(*code, _files(self.root, "lm", "cli"), _files(self.cache, "texts"))

    @cached_property
    def _compiled(self) -> Path:
        return self.cache / f"compiled-{self.name}-{_hash(_files(self.root, 'lm/kernels', 'lm/engine'))}"

    def compile(self, selected: list[Case]) -> None:
        """Compile this tree's kernels, if a selected case needs them and has no results yet."""
        needed = any(case.is_compiled and not self._results(case).exists() for case in selected)
        if needed and not self._compiled.exists():
            making = self._compiled.with_suffix(f".{os.getpid()}")
            command = [sys.executable, "-P", "-m", "cli", "compile"]
            subprocess.run(command, env=self._environment(making), check=True, cwd=self.cache)
            making.rename(self._compiled)

    def record(self, case: Case) -> Record:
        """Return the results of a case, which is run if they are not known."""
        path = self._results(case)
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.cache) as parent:
                found = self._run(case, Path(parent, case.name.replace("/", "-")), Path(parent, "results.npz"))
                record = dict(np.load(found))
                if not any(name.endswith(_EXIT) for name in record):
                    found.rename(path)
                return record
        return dict(np.load(path))

    def _results(self, case: Case) -> Path:
        return self.cache / self.name / f"{case.name.replace('/', '-')}-{_hash(self._source, *case.lines)}.npz"

    def _run(self, case: Case, folder: Path, results: Path) -> Path:
        folder.mkdir()
        (folder / "text").symlink_to(self.cache / "texts")
        if case.is_compiled:
            shutil.copytree(self._compiled, folder / "cache")
        request = {
            "folder": str(folder), "cache": str(folder / "cache"), "results": str(results), "lines": case.lines,
            "is_compiled": case.is_compiled,
        }  # fmt: skip
        server = self._server()
        assert server.stdin is not None
        assert server.stdout is not None
        print(json.dumps(request), file=server.stdin, flush=True)
        if (answer := server.stdout.readline()) != "0\n":
            raise RuntimeError(f"{case.name}: cannot be run in {self.root}: {answer}")
        return results

    def _server(self) -> "subprocess.Popen[str]":
        """Return the process of this thread that runs cases; it ends with this one."""
        if not hasattr(self._worker, "server"):
            self._worker.server = subprocess.Popen(
                [sys.executable, "-P", "-m", "tests.golden.execute", self.name], cwd=self.cache, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self._environment(self.cache / "none"),
            )  # fmt: skip
        return self._worker.server

    def _environment(self, cache_folder: Path) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LM_")}
        own = {"PYTHONPATH": f"{self.root}{os.pathsep}{_TREE}", "LM_CACHE": str(cache_folder)}
        return kept | _ENVIRONMENT | flags.ENVIRONMENT[self.name] | own


def _extract(cache_folder: Path) -> Path:
    """Extract the packages of the base commit, unless they are there."""
    folder = cache_folder / f"base-{BASE}"
    if not folder.exists():
        archive = subprocess.run(
            ["git", "-C", str(_TREE), "archive", BASE, "lm", "cli"], check=True, capture_output=True
        ).stdout
        with tempfile.TemporaryDirectory(dir=cache_folder) as made:
            subprocess.run(["tar", "-x", "-C", made], input=archive, check=True)
            shutil.copytree(made, folder)
    return folder


@cache
def _files(root: Path, *names: str) -> str:
    """Return a hash of all files in some folders."""
    paths = sorted(path for name in names for path in (root / name).rglob("*") if path.is_file())
    return _hash(*(f"{path.relative_to(root)} {_hash(path.read_bytes())}" for path in paths if path.suffix != ".pyc"))


def _hash(*content: str | bytes) -> str:
    parts = (each if isinstance(each, bytes) else each.encode() for each in content)
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
