"""One process at a time trains in a folder, and whoever stops lets others continue."""

import threading

import pytest

from lm.errors import InputError
from lm.run_folder import find_checkpoint
from lm.training.events import Saved
from lm.training.loop import train
from lm.training.startup import resume_run

TRAINED = "run: another process is training this run; wait for it to end, or use another folder"


def test_a_folder_is_for_one_run_at_a_time(make_run):
    run = make_run()
    before = (run.folder / "config.json").read_bytes()
    with pytest.raises(InputError, match=TRAINED):
        make_run(steps=7)
    events = train(run)
    assert next(event for event in events if isinstance(event, Saved))
    for path in (run.folder, run.folder / "checkpoints" / "step-5"):
        with pytest.raises(InputError, match=TRAINED):
            resume_run(path)
    assert (run.folder / "config.json").read_bytes() == before
    assert list(events)[-1] == Saved(12, run.folder / "checkpoints" / "step-12")


def test_of_two_that_start_at_once_one_runs(make_run):
    ready, found = threading.Barrier(2), []

    def start():
        ready.wait()
        try:
            found.append(make_run())
        except InputError as error:
            found.append(str(error))

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(one, str) and one.endswith(TRAINED) for one in found) == 1


def test_whoever_stops_lets_others_go_on(make_run):
    """Whether training ended, was broken off, or never began because there was nothing to resume."""
    run = make_run()
    events = train(run)
    next(event for event in events if isinstance(event, Saved))
    events.close()
    (find_checkpoint(run.folder, which="last") / "state.json").write_text("{}")
    with pytest.raises(InputError, match="differs from its sha256"):
        resume_run(run.folder)
    with pytest.raises(InputError, match="differs from its sha256"):
        resume_run(run.folder)
