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
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import msgspec

from lm import errors
from lm.config.run_spec import RunSpec
from lm.distributed import launcher_env
from lm.errors import LMError, TrainingError
from lm.signals import StopSignals
from lm.training import events
from lm.training.trainer import Started, train_events

_POLL_SECONDS = 0.05
"""Poll interval of the event file."""
_EVENTS = {kind.__name__: kind for kind in get_args(events.Event)}


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
        reader.start()
        try:
            command = ["-m", __name__, str(spec_file), str(event_file)]
            code = launch(command, processes=spec.processes, start_time=start)
        finally:
            reader.ended.set()
            reader.join()
    if reader.error is not None:
        raise reader.error
    if code or reader.folder is None:
        raise TrainingError(f"the {spec.processes} processes of this training ended with code {code}")
    return reader.folder


class _EventReader(threading.Thread):
    """Reads the event file until `ended` is set.

    Attributes:
        folder: of the run, once it has started.
        error: raised by a process or by the callback.
    """

    def __init__(self, path: Path, on_event: Callable[[events.Event], None]) -> None:
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self.folder: Path | None = None
        self.error: Exception | None = None
        self._path, self._on_event = path, on_event

    def run(self) -> None:
        try:
            with self._path.open(encoding="utf-8") as file:
                rest, is_last = "", False
                while not is_last:
                    is_last = self.ended.wait(_POLL_SECONDS)
                    *lines, rest = (rest + file.read()).split("\n")
                    for line in lines:
                        self._handle(**json.loads(line))
        except Exception as error:
            self.error = self.error or error

    def _handle(self, event: str, **values: Any) -> None:
        folder = {"folder": Path(values["folder"])} if "folder" in values else {}
        if event == Started.__name__:
            self.folder = folder["folder"]
        elif event in _EVENTS:
            self._on_event(_EVENTS[event](**{**values, **folder}))
        else:
            self.error = getattr(errors, event, LMError)(values["message"])


def main(spec_file: str, event_file: str) -> int:
    """Run one of the processes; returns the exit code."""
    launcher_env.silence_torch_logs()
    spec = msgspec.json.decode(Path(spec_file).read_bytes(), type=RunSpec)
    with Path(event_file).open("a", encoding="utf-8") as file:

        def send(name: str, values: dict[str, Any]) -> None:
            file.write(json.dumps({"event": name, **values}, default=str) + "\n")
            file.flush()

        try:
            with (
                StopSignals() as signals,
                closing(train_events(spec, stop=signals.received, start_time=launcher_env.start_time())) as training,
            ):
                for event in training:
                    if launcher_env.rank():
                        continue
                    if isinstance(event, Started):
                        send(Started.__name__, {"folder": event.run.folder})
                    elif type(event).__name__ in _EVENTS:
                        send(type(event).__name__, dataclasses.asdict(event))
        except LMError as error:
            if launcher_env.is_reporting():
                send(type(error).__name__, {"message": str(error)})
            return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
