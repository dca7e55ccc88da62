"""Train a specification in several processes of this machine, from Python: each is this module, run as a program.

The first process writes what happens to a file, an event a line, which the caller reads meanwhile.
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

from lm import errors
from lm.config.run_spec import RunSpec
from lm.distributed import launcher_env
from lm.errors import LMError, TrainingError
from lm.signals import StopSignals
from lm.training import events
from lm.training.trainer import Started, Trainer

_SECONDS = 0.05
"""Between two looks at the file of events."""
_PASSED_ON = {
    kind.__name__: kind
    for kind in (
        events.Step, events.DecayStarted, events.EndRescheduled, events.Evaluation, events.Sample, events.Saved,
        events.StoppedEarly, events.TrainingWarning,
    )
}  # fmt: skip


def train_in_processes(spec: RunSpec, *, on_event: Callable[[events.Event], None] = lambda _: None) -> Path:
    """Train in as many processes as a specification says; returns the folder of the run.

    Args:
        spec: of a new run, or of one to resume.
        on_event: called with the events of training, in a thread.

    Raises:
        LMError: what one of the processes has raised.
        TrainingError: the processes were killed.
    """
    from lm.distributed.launcher import launch  # noqa: PLC0415 (takes a while, and only for several processes)

    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lm-ranks-") as place:
        spec_file, happened = Path(place) / "spec.json", Path(place) / "events.jsonl"
        spec_file.write_text(json.dumps(spec.to_dict()), encoding="utf-8")
        happened.touch()
        reader = _EventReader(happened, on_event)
        with reader:
            command = ["-m", __name__, str(spec_file), str(happened)]
            ended = launch(command, processes=spec.processes, began=began)
    if reader.error is not None:
        raise reader.error
    if ended.code or reader.folder is None:
        raise TrainingError(f"the {spec.processes} processes of this training ended with code {ended.code}")
    return reader.folder


class _EventReader:
    """While open, reads the file of events on a thread.

    Attributes:
        folder: of the run, once it has begun.
        error: what a process has raised, or the caller's function of events.
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
                self._take(json.loads(line))
        except Exception as error:
            self.error = self.error or error

    def _lines(self) -> Iterator[str]:
        """Complete lines as they come, until the processes have ended."""
        with self._path.open(encoding="utf-8") as file:
            rest = ""
            while True:
                is_last = self._ended.is_set()
                rest += file.read()
                *lines, rest = rest.split("\n")
                yield from lines
                if is_last:
                    return
                self._ended.wait(_SECONDS)

    def _take(self, entry: dict[str, Any]) -> None:
        name = entry.pop("event")
        if name == Started.__name__:
            self.folder = Path(entry["folder"])
        elif name in _PASSED_ON:
            if "folder" in entry:
                entry["folder"] = Path(entry["folder"])
            self._on_event(_PASSED_ON[name](**entry))
        else:
            self.error = getattr(errors, name, LMError)(entry["message"], settings=entry["settings"])


def main(spec_file: str, happened: str) -> int:
    """Be one of the processes; returns the exit code."""
    launcher_env.silence_torch_logs()
    spec = RunSpec.from_dict(json.loads(Path(spec_file).read_text(encoding="utf-8")))
    with Path(happened).open("a", encoding="utf-8") as file:

        def tell(name: str, **values: Any) -> None:  # noqa: ANN401 (the fields of an event)
            file.write(json.dumps({"event": name, **values}, default=str) + "\n")
            file.flush()

        try:
            with (
                StopSignals() as signals,
                Trainer(spec, stop=signals.received, began=launcher_env.start_time()) as trainer,
            ):
                for event in trainer:
                    if trainer.world.is_main and isinstance(event, Started):
                        tell(Started.__name__, folder=event.run.folder)
                    elif trainer.world.is_main and type(event).__name__ in _PASSED_ON:
                        tell(type(event).__name__, **dataclasses.asdict(event))
        except LMError as error:
            if launcher_env.is_reporting():
                tell(type(error).__name__, message=str(error), settings=error.settings)
            return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
