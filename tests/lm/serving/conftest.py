"""A server in a process of its own, on a free port of loopback."""

import contextlib
import os
import re
import threading
from collections.abc import Iterator
from subprocess import PIPE, Popen

from tests.forked import Forked, start
from tests.tiny_runs import RUNS  # noqa: F401 (for the tests of this folder)
from tests.waiting import SECONDS, wait_until


class Server:
    """A running `lm serve`.

    Attributes:
        url: of the server.
        process: its process.
        log: what it wrote to stderr.
    """

    def __init__(self, process: Forked | Popen[str]) -> None:
        self.process, self.log, self.url = process, list[str](), ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_until_ready(self) -> None:
        wait_until(lambda: self.url or self.process.poll() is not None)
        assert self.url, "".join(self.log)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(r"http://\S+", line):
                self.url = found[0]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def close(self) -> None:
        self.process.wait(SECONDS)
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def stop(self) -> int:
        """End the server as a service manager does; return its exit code."""
        self.process.terminate()
        return self.process.wait(SECONDS)


def request(method: str, url: str, **options):
    """The answer of a server; certificates, which take longer to load than an answer, are left out."""
    import httpx

    return httpx.request(method, url, verify=False, timeout=SECONDS, **options)


def served(*arguments: object, **environment: str) -> contextlib.AbstractContextManager[Server]:
    """A server with some arguments, killed at the end if it is still there."""
    return serving(start("serve", "--port", 0, "--threads", 1, *arguments, stderr=PIPE, env=os.environ | environment))


@contextlib.contextmanager
def serving(process: Forked | Popen[str]) -> Iterator[Server]:
    """The server that a process of `lm serve` becomes, killed at the end if it is still there."""
    server = Server(process)
    try:
        server.wait_until_ready()
        yield server
    finally:
        process.kill()
        server.close()
