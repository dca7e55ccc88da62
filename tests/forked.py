"""Commands and functions in processes of their own, forked from one that has imported torch, which takes seconds."""

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import DEVNULL, PIPE, CompletedProcess
from typing import IO

from tests.waiting import SECONDS

_CONTEXT = multiprocessing.get_context("forkserver" if os.name == "posix" else "spawn")
_CONTEXT.set_forkserver_preload([
    "torch", "torch._dynamo", "lm.api", "cli.main", "cli.train", "cli.generate",
])  # fmt: skip
Stream = int | IO[str] | IO[bytes] | None  # None: closed


class Forked:
    """A function of strings that runs in a process of its own, with what tests use of `subprocess.Popen`.

    Pipes are of UTF-8 text.
    """

    def __init__(
        self,
        function: Callable[..., object],
        *arguments: object,
        stdin: Stream = DEVNULL,
        stdout: Stream = DEVNULL,
        stderr: Stream = DEVNULL,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.stdin, stdin_of_process = _open(stdin, writes=True)
        self.stdout, stdout_of_process = _open(stdout)
        self.stderr, stderr_of_process = _open(stderr)
        streams = [stdin_of_process, stdout_of_process, stderr_of_process]
        place = dict(os.environ if env is None else env), str(Path.cwd())
        self._process = _CONTEXT.Process(target=_run, args=(function, [*map(str, arguments)], streams, *place))
        self._process.start()
        self.pid = self._process.pid or 0
        for stream in filter(None, streams):
            stream.close()
        self._limit = threading.Timer(SECONDS, self.kill)  # so that a test that reads from it does not hang
        self._limit.daemon = True
        self._limit.start()

    def __enter__(self) -> "Forked":
        return self

    def __exit__(self, *_: object) -> None:
        self._limit.cancel()
        self.kill()
        self.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float = SECONDS) -> int:
        self._process.join(timeout)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended, and its exit code is on its way
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(*arguments: object, **options) -> Forked:
    """Start `lm …`."""
    return Forked(run_main, *arguments, **options)


def lm(*arguments: object, stdin: str = "", env: Mapping[str, str] | None = None) -> CompletedProcess[str]:
    """Run `lm …` to its end."""
    with (
        tempfile.TemporaryFile("w+") as given,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        given.write(stdin)
        given.seek(0)
        with start(*arguments, stdin=given, stdout=out, stderr=err, env=env) as process:
            code = process.wait()
        for written in (out, err):
            written.seek(0)
        return CompletedProcess([*arguments], code, out.read(), err.read())


def _open(given: Stream, *, writes: bool = False) -> tuple[IO[str] | None, Connection | None]:
    """Return our end if a stream is a pipe, and the end of the process in a form that can be sent to it."""
    if given is None:
        return None, None
    if given == DEVNULL:
        return None, Connection(os.open(os.devnull, os.O_RDWR))
    if given != PIPE:
        return None, Connection(os.dup(given if isinstance(given, int) else given.fileno()))
    reading, writing = os.pipe()
    ours, theirs = (writing, reading) if writes else (reading, writing)
    return os.fdopen(ours, "w" if writes else "r", encoding="utf-8"), Connection(theirs)


def _run(
    function: Callable[..., object],
    arguments: list[str],
    streams: list[Connection | None],
    environment: dict[str, str],
    folder: str,
) -> None:
    """Become a process as a shell starts it."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, (name, stream) in enumerate(zip(("stdin", "stdout", "stderr"), streams, strict=True)):
        if stream is None:
            os.close(number)
        else:
            os.dup2(stream.fileno(), number)
            stream.close()
        setattr(sys, name, stream and os.fdopen(number, "w" if number else "r", closefd=False))
    function(*arguments)


def run_main(*arguments: str) -> None:
    """Run `lm …` in this process, which ends with it."""
    sys.argv = ["lm", *arguments]
    from cli.__main__ import main

    main()
