import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lm.corpus.prepared_folder import (
    partial_folder,
    remove_abandoned,
    remove_leftover_parts,
    rename_into_place,
    resumable_folder,
)

HOLD = """
import sys, time, pathlib
from lm.corpus.prepared_folder import partial_folder
with partial_folder(pathlib.Path(sys.argv[1])) as folder:
    (folder / "data").write_text("half")
    print(folder, flush=True)
    time.sleep(60)
"""


def age(folder: Path) -> None:
    os.utime(folder, (0, 0))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_a_killed_process_began_is_removed_and_what_a_living_one_works_on_is_not(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path / "out")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        partial = Path(process.stdout.readline().strip())
        age(partial)
        remove_abandoned(tmp_path)
        assert (partial / "data").read_text() == "half"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    remove_abandoned(tmp_path, "other")
    assert partial.exists()
    remove_abandoned(tmp_path, "out")
    assert names(tmp_path) == set()


def test_a_new_folder_may_be_about_to_be_locked(tmp_path):
    new = tmp_path / ".out.partial-1234"
    new.mkdir()
    remove_abandoned(tmp_path)
    assert new.exists()
    age(new)
    remove_abandoned(tmp_path)
    assert not new.exists()


def test_other_hidden_folders_stay(tmp_path):
    for name in (".git", ".out", "out.partial-1", ".outer.partial-1", ".[a].partial-2"):
        (tmp_path / name).mkdir()
        age(tmp_path / name)
    remove_abandoned(tmp_path, "[a]")
    assert names(tmp_path) == {".git", ".out", "out.partial-1", ".outer.partial-1"}


def test_a_folder_that_was_renamed_stays_and_one_that_failed_goes(tmp_path):
    with partial_folder(tmp_path / "out") as partial:
        partial.rename(tmp_path / "out")
    with pytest.raises(KeyboardInterrupt), partial_folder(tmp_path / "other"):
        raise KeyboardInterrupt
    assert names(tmp_path) == {"out"}


@pytest.mark.parametrize("there_before", [False, True])
def test_a_folder_is_on_the_disk_before_it_has_its_name(tmp_path, disk, there_before):
    folder = tmp_path / "there" / "out"
    if there_before:
        folder.mkdir(parents=True)
        (folder / "old").touch()
    with partial_folder(folder) as partial:
        (partial / "new").touch()
        rename_into_place(partial, folder, is_there=lambda: False)
    aside = [("rename", f"out -> {partial.name}-replaced")] if there_before else []
    assert disk.entries == [("sync", partial.name), *aside, ("rename", f"{partial.name} -> out"), ("sync", "there")]
    assert names(folder) == {"new"}
    assert names(tmp_path / "there") == {"out"}


def test_where_another_process_was_faster_its_folder_stays(tmp_path):
    (tmp_path / "out").mkdir()
    with partial_folder(tmp_path / "out") as partial:
        (partial / "new").touch()
        rename_into_place(partial, tmp_path / "out", is_there=lambda: True)
    assert names(tmp_path) == {"out"}
    assert names(tmp_path / "out") == set()


def stop_after(file: Path) -> None:
    file.write_text("done")
    raise KeyError


class TestUnfinished:
    def test_stays_after_an_error_unless_it_is_empty_and_goes_when_all_is_done(self, tmp_path):
        with pytest.raises(KeyError), resumable_folder(tmp_path / "a"):
            raise KeyError
        assert names(tmp_path) == set()
        with pytest.raises(KeyError), resumable_folder(tmp_path / "a") as folder:
            stop_after(folder / "part")
        with resumable_folder(tmp_path / "a") as folder:
            assert (folder / "part").read_text() == "done"
        assert names(tmp_path) == set()

    def test_two_at_a_time_do_not_share_one(self, tmp_path):
        with resumable_folder(tmp_path / "a") as first, resumable_folder(tmp_path / "a") as second:
            assert first != second
            (second / "part").write_text("done")
            assert names(first) == set()
        assert names(tmp_path) == set()

    def test_in_a_cache_it_is_abandoned_one_day(self, tmp_path):
        for name, days in ((".new.parts", 13), (".old.parts", 15)):
            (tmp_path / name).mkdir()
            os.utime(tmp_path / name, (time.time() - days * 24 * 3600,) * 2)
        remove_abandoned(tmp_path, "old")
        assert names(tmp_path) == {".new.parts", ".old.parts"}
        remove_abandoned(tmp_path)
        assert names(tmp_path) == {".new.parts"}

    def test_what_a_process_left_that_was_killed_at_the_very_end_goes(self, tmp_path):
        (tmp_path / ".a.parts" / "part").mkdir(parents=True)
        with resumable_folder(tmp_path / "b") as at_work:
            remove_leftover_parts(tmp_path / "b")
            assert at_work.exists()
        remove_leftover_parts(tmp_path / "a")
        remove_leftover_parts(tmp_path / "c")
        assert names(tmp_path) == set()
