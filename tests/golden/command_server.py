"""Run commands of one source tree, each in a fork of a process that has imported torch already.

    python -P command_server.py    with PYTHONPATH set to the tree

Requests come as lines of JSON on stdin and are answered on stdout, one at a time. The file imports nothing of `tests`,
since it also runs trees that have no such package. Kernels that are otherwise selected by their speed are fixed:
torch's default matmul is always the faster one.
"""

import contextlib
import importlib
import io
import json
import os
import signal
import sys
import time
import traceback
from typing import Any

_POLL_SECONDS = 0.005


def main() -> None:
    """Answer each request by the exit code of the command: -1 after a timeout."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    _fix_timed_choices()
    for name in ("torch", "torch._dynamo", "numpy", "sacrebleu", "cli.main", "lm.api", "cli.training.train"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    print(json.dumps({"lm": os.path.dirname(sys.modules["lm"].__file__ or "")}), file=answers, flush=True)  # noqa: PTH120
    for line in requests:
        print(json.dumps(_run(json.loads(line))), file=answers, flush=True)


def _fix_timed_choices() -> None:
    """Make every comparison of speeds that selects a CPU kernel choose torch's default."""
    import torch

    torch.backends.mkldnn.is_available = lambda: False
    with contextlib.suppress(ImportError):
        importlib.import_module("lm.hardware").times_as_fast = lambda *_args, **_options: 0.0


def _run(request: dict[str, Any]) -> int:
    """Fork a child for a request and wait for it."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = _child(request)
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    deadline = time.monotonic() + request["timeout"]
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return -1
        time.sleep(_POLL_SECONDS)


def _child(request: dict[str, Any]) -> int:
    """Become a process as the shell would start it, and run a command line."""
    os.setsid()
    os.chdir(request["folder"])
    os.environ.update(request["environment"])
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        opened = os.open(request[name], flags if number else os.O_RDONLY, 0o644)
        os.dup2(opened, number)
    sys.stdin = io.TextIOWrapper(open(0, "rb", closefd=False), encoding="utf-8")  # noqa: SIM115
    sys.stdout = io.TextIOWrapper(open(1, "wb", closefd=False), encoding="utf-8")  # noqa: SIM115
    sys.stderr = io.TextIOWrapper(open(2, "wb", closefd=False), encoding="utf-8", line_buffering=True)  # noqa: SIM115
    try:
        for name in request["preload"]:
            importlib.import_module(name)
        sys.argv = ["lm", *request["arguments"]]
        importlib.import_module("cli.__main__").main()
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:  # the traceback is what the comparison shows
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    main()
