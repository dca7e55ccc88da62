"""A new run has a folder of its own."""

from __future__ import annotations

from cli.main import run
from cli.training import starting
from lm.locks import LockFile
from tests.system.conftest import SMALL


def test_without_out_the_run_gets_a_name_of_its_own(place, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert run(["train", str(place / "text.txt"), "--steps", "2", *SMALL]) == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["text-tiny", "text-tiny-2"]


def test_a_folder_in_which_another_process_trains_is_refused_before_anything_is_prepared(place, capsys, tmp_path):
    lock = LockFile(tmp_path / "run" / ".lock")
    lock.acquire()
    capsys.readouterr()
    assert run(["train", str(place / "text.txt"), "-o", str(tmp_path / "run"), "--steps", "3", *SMALL]) == 1
    assert capsys.readouterr().err.startswith(f"lm: {tmp_path / 'run'}: another process is training this run; wait")
    lock.release()
    assert run(["train", str(place / "text.txt"), "-o", str(tmp_path / "run"), "--steps", "3", *SMALL]) == 0


def test_commands_that_begin_together_have_folders_of_their_own(place, monkeypatch, tmp_path):
    """The second is started, and ends, while the first prepares its text."""
    monkeypatch.chdir(tmp_path)
    command, prepare = ["train", str(place / "text.txt"), "--steps", "2", *SMALL], starting.prepare

    def meanwhile(*arguments):
        monkeypatch.setattr(starting, "prepare", prepare)
        assert run(command) == 0
        return prepare(*arguments)

    monkeypatch.setattr(starting, "prepare", meanwhile)
    assert run(command) == 0
    assert sorted(path.parent.parent.name for path in tmp_path.glob("runs/*/checkpoints/step-2")) == [
        "text-tiny",
        "text-tiny-2",
    ]


def test_a_command_that_fails_leaves_no_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_bytes(b"\xff")
    assert run(["train", "text.txt", "--steps", "2", *SMALL]) == 1
    assert not (tmp_path / "runs").exists()
    (tmp_path / "runs").mkdir()
    assert run(["train", "text.txt", "--steps", "2", *SMALL]) == 1
    assert not list((tmp_path / "runs").iterdir())
