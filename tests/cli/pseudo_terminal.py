"""A command on a pseudo-terminal."""

import os
import pty
import re
import select
import signal
import time
from pathlib import Path

from tests.forked import start


class Terminal:
    """A session on a terminal, as a person has it."""

    def __init__(self, *arguments):
        self.ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "dumb"}
        self.process = start(*arguments, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)
        self.seen = ""

    def type(self, text):
        os.write(self.ours, text.encode())

    def wait_for(self, pattern, *, seconds=900):
        """What was written up to the end of a pattern; it is taken off."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.seen)):
            ready, _, _ = select.select([self.ours], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"{pattern!r} not in {self.seen!r}"
            self.seen += os.read(self.ours, 10_000).decode(errors="replace").replace("\r\n", "\n")
        before, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return before

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)

    def interrupt_waiting(self):
        """Once the process waits for a key: a signal that comes before does not wake it up."""
        status, asleep = Path(f"/proc/{self.process.pid}/status"), 0
        while asleep < 3:
            time.sleep(0.1)
            asleep = asleep + 1 if not status.exists() or "State:\tS" in status.read_text() else 0
        self.interrupt()

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.ours)
