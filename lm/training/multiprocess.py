"""Training in several processes started from Python; each runs this module as a program.

Rank 0 writes its events to a file, one JSON object per line, which the parent reads.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from lm import errors
from lm.config.run_spec import RunSpec
from lm.distributed import launcher_env
from lm.errors import LMError, TrainingError
from lm.signals import StopSignals
from lm.training import events
from lm.training.trainer import Started, Trainer

_POLL_SECONDS = 0.05
"""Poll interval of the event file."""
_FORWARDED_EVENTS = {
    kind.__name__: kind
    for kind in (
        events.Step, events.DecayStarted, events.EndRescheduled, events.Evaluation, events.Sample, events.Saved,
        events.StoppedEarly, events.TrainingWarning,
    )
}  # fmt: skip


def train_in_processes(spec: RunSpec, *, on_event: Callable[[events.Event], None] = lambda _: None) -> Path:
    """Train in `spec.processes` processes; returns the run folder.

    Args:
        spec: of a new run, or of one to resume.
        on_event: called with training events, on a thread.

    Raises:
        LMError: raised by one of the processes.
        TrainingError: the processes were killed.
    """
    from lm.distributed.launcher import launch  # noqa: PLC0415 (slow import)

    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lm-ranks-") as folder:
        spec_file, event_file = Path(folder) / "spec.json", Path(folder) / "events.jsonl"
        spec_file.write_bytes(msgspec.json.encode(spec))
        event_file.touch()
        reader = _EventReader(event_file, on_event)
        with reader:
            command = ["-m", __name__, str(spec_file), str(event_file)]
            result = launch(command, processes=spec.processes, start_time=start)
    if reader.error is not None:
        raise reader.error
    if result.code or reader.folder is None:
        raise TrainingError(f"the {spec.processes} processes of this training ended with code {result.code}")
    return reader.folder


class _EventReader:
    """Reads the event file on a thread while it is open.

    Attributes:
        folder: of the run, once it has started.
        error: raised by a process or by the callback.
    """

    def __init__(self, path: Path, on_event: Callable[[events.Event], None]) -> None:
        self.folder: Path | None = None
        self.error: Exception | None = None
        self._path, self._on_event, self._ended = path, on_event, threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> _EventReader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _read(self) -> None:
        try:
            for line in self._lines():
                self._handle(json.loads(line))
        except Exception as error:
            self.error = self.error or error

    def _lines(self) -> Iterator[str]:
        """Yield complete lines as they are written, until the processes have ended."""
        with self._path.open(encoding="utf-8") as file:
            rest = ""
            while True:
                is_last = self._ended.is_set()
                rest += file.read()
                *lines, rest = rest.split("\n")
                yield from lines
                if is_last:
                    return
                self._ended.wait(_POLL_SECONDS)

    def _handle(self, entry: dict[str, Any]) -> None:
        name = entry.pop("event")
        if name == Started.__name__:
            self.folder = Path(entry["folder"])
        elif name in _FORWARDED_EVENTS:
            if "folder" in entry:
                entry["folder"] = Path(entry["folder"])
            self._on_event(_FORWARDED_EVENTS[name](**entry))
        else:
            self.error = getattr(errors, name, LMError)(entry["message"])


def main(spec_file: str, event_file: str) -> int:
    """Run one of the processes; returns the exit code."""
    launcher_env.silence_torch_logs()
    spec = msgspec.json.decode(Path(spec_file).read_bytes(), type=RunSpec)
    with Path(event_file).open("a", encoding="utf-8") as file:

        def send(name: str, **values: Any) -> None:
            file.write(json.dumps({"event": name, **values}, default=str) + "\n")
            file.flush()

        try:
            with (
                StopSignals() as signals,
                Trainer(spec, stop=signals.received, start_time=launcher_env.start_time()) as trainer,
            ):
                for event in trainer:
                    if trainer.world.is_main and isinstance(event, Started):
                        send(Started.__name__, folder=event.run.folder)
                    elif trainer.world.is_main and type(event).__name__ in _FORWARDED_EVENTS:
                        send(type(event).__name__, **dataclasses.asdict(event))
        except LMError as error:
            if launcher_env.is_reporting():
                send(type(error).__name__, message=str(error))
            return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
