from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lm.data.folder import partial_folder, put_in_place, remove_abandoned

HOLD = """
import sys, time, pathlib
from lm.data.folder import partial_folder
with partial_folder(pathlib.Path(sys.argv[1])) as folder:
    (folder / "data").write_text("half")
    print(folder, flush=True)
    time.sleep(60)
"""


def age(folder: Path) -> None:
    os.utime(folder, (0, 0))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_a_killed_process_began_is_removed_and_what_a_living_one_works_on_is_not(tmp_path: Path) -> None:
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


def test_a_new_folder_may_be_about_to_be_locked(tmp_path: Path) -> None:
    new = tmp_path / ".out.partial-1234"
    new.mkdir()
    remove_abandoned(tmp_path)
    assert new.exists()
    age(new)
    remove_abandoned(tmp_path)
    assert not new.exists()


def test_other_hidden_folders_stay(tmp_path: Path) -> None:
    for name in (".git", ".out", "out.partial-1", ".outer.partial-1", ".[a].partial-2"):
        (tmp_path / name).mkdir()
        age(tmp_path / name)
    remove_abandoned(tmp_path, "[a]")
    assert names(tmp_path) == {".git", ".out", "out.partial-1", ".outer.partial-1"}


def test_a_folder_that_was_renamed_stays_and_one_that_failed_goes(tmp_path: Path) -> None:
    with partial_folder(tmp_path / "out") as partial:
        partial.rename(tmp_path / "out")
    with pytest.raises(KeyboardInterrupt), partial_folder(tmp_path / "other"):
        raise KeyboardInterrupt
    assert names(tmp_path) == {"out"}


@pytest.mark.parametrize("there_before", [False, True])
def test_a_folder_is_on_the_disk_before_it_has_its_name(tmp_path: Path, disk, there_before: bool) -> None:
    folder = tmp_path / "there" / "out"
    if there_before:
        folder.mkdir(parents=True)
        (folder / "old").touch()
    with partial_folder(folder) as partial:
        (partial / "new").touch()
        put_in_place(partial, folder, is_there=lambda: False)
    aside = [("rename", f"out -> {partial.name}-replaced")] if there_before else []
    assert disk.entries == [("sync", partial.name), *aside, ("rename", f"{partial.name} -> out"), ("sync", "there")]
    assert names(folder) == {"new"}
    assert names(tmp_path / "there") == {"out"}


def test_where_another_process_was_faster_its_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with partial_folder(tmp_path / "out") as partial:
        (partial / "new").touch()
        put_in_place(partial, tmp_path / "out", is_there=lambda: True)
    assert names(tmp_path) == {"out"}
    assert names(tmp_path / "out") == set()
