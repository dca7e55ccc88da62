"""Run the lines of cases in one tree and save their results; `compare.py` starts it and sends the cases.

    python -P -m tests.golden.execute SIDE    PYTHONPATH: the tree, then the tree of this file

Each case, and each line of it, runs in a fork of a process that has imported torch.
"""

import importlib
import json
import os
import runpy
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden import flags, probes

Record = dict[str, np.ndarray[Any, Any]]
COMPARED: Mapping[str, str] = {
    "attention": "queries.words keys.words weights mean",
    "classify": "label probabilities",
    "evaluate": "bleu.score chrf.score ter.score accuracy macro_f1 sentences",
    "fill": "filled blanks.token blanks.probability",
    "generate": "prompt text tokens logprobs finish_reason score alternatives.token alternatives.logprob",
    "perplexity": "tokens nats logprob documents words bytes bits_per_byte perplexity difference standard_error",
    "tokenizer": "ids tokens",
    "translate": "source translations.text translations.tokens translations.logprobs translations.score",
}
"""Fields of the JSON output of commands that are compared; stdout that is not JSON is compared as text."""


_IMPORTED = ("torch._dynamo", "safetensors.torch", "tokenizers", "cli.main", "lm.api", "cli.train")
_SECONDS = 600
"""After which a line is stopped."""


def main(side: str) -> None:
    """Run the case of each line of stdin, and answer on stdout."""
    import torch

    torch.backends.mkldnn.is_available = lambda: False  # no kernels are selected by their speed
    for name in _IMPORTED:
        with suppress(ImportError):
            importlib.import_module(name)
    assert Path(importlib.import_module("lm").__file__ or "").is_relative_to(sys.path[0]), "another lm was imported"
    for request in os.fdopen(os.dup(0)):  # sys.stdin stays unread, as a command finds it
        case = json.loads(request)
        child = os.fork()
        if child == 0:
            os.chdir(case["folder"])
            os.environ["LM_CACHE"] = case["cache"]
            if case["is_compiled"]:
                importlib.import_module("numba")  # so that compiled code is used from the first token on
            np.savez(case["results"], **_record(side, case["lines"]))
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _record(side: str, lines: Sequence[str]) -> Record:
    """Run the lines of a case; the first that fails is the last."""
    record = Record()
    for number, line in enumerate(lines, 1):
        words = shlex.split(line) if side == "base" else flags.translate(line)
        if not words:
            continue
        name, child = f"{number} {words[0]}", os.fork()
        if child == 0:
            _run(side, words)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code:
            error = Path("stderr").read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
            return record | {f"{name}: exit": np.array([f"{shlex.join(words)}: exit code {code}, {error}"])}
        found = Record()
        if words[0] in COMPARED:
            found = _output(words[0], Path("stdout").read_text(encoding="utf-8"))
        elif words[0] in probes.BASE:
            found = dict(np.load("found.npz"))
        record |= {f"{name}: {key}": value for key, value in found.items()}
    return record


def _run(side: str, words: list[str]) -> None:
    """Run a line with its output in files, and end the process."""
    code = 1
    signal.alarm(_SECONDS)
    try:
        stdin = "/dev/null"
        if "<" in words:
            stdin, words = words[-1], words[:-2]
        writing = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        for number, name in enumerate((stdin, "stdout", "stderr")):
            os.dup2(os.open(name, writing if number else os.O_RDONLY), number)
        if words[0] == "copy":
            shutil.copytree(*words[1:])
        elif words[0] in probes.BASE:
            probe: Callable[[Path], Record] = getattr(probes, side.upper())[words[0]]
            np.savez("found.npz", **{name: _plain(value) for name, value in probe(Path(words[1])).items()})
        else:
            sys.argv = ["lm", *words]
            runpy.run_module("cli", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _plain(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return values.astype(str) if values.dtype == object else values  # a score that an evaluation doesn't have is None


def _output(command: str, text: str) -> Record:
    """Return the compared fields of a command's output, the values of all places one after another."""
    try:
        values = [json.loads(line) for line in text.splitlines()]
    except ValueError:
        return {"stdout": np.array(text.splitlines())}
    found: dict[str, list[Any]] = {}
    _collect(values, "", found)
    names = COMPARED[command].split()
    kept = {name: each for name, each in found.items() if any(f".{name}.".find(f".{known}.") >= 0 for known in names)}
    return {
        name: np.array(each if _is_numeric(each) else [json.dumps(one) for one in each]) for name, each in kept.items()
    }


def _collect(value: Any, name: str, found: dict[str, list[Any]]) -> None:
    if isinstance(value, dict):
        for key, each in value.items():
            _collect(each, f"{name}.{flags.FIELDS.get(key, key)}".removeprefix("."), found)
    elif isinstance(value, list):
        for each in value:
            _collect(each, name, found)
    else:
        found.setdefault(name, []).append(value)


def _is_numeric(values: list[Any]) -> bool:
    return all(isinstance(value, (int, float)) for value in values)


if __name__ == "__main__":
    main(*sys.argv[1:])
