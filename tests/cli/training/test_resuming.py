"""A run is resumed as it was planned."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from cli.main import run
from cli.training.train import newest_by_default
from tests.system.conftest import SMALL


def test_resume_alone_continues_with_the_newest_unfinished_run(place, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["train", "--resume"]) == 1
    assert "runs: no such folder" in capsys.readouterr().err
    for name, steps in (("old", "4"), ("new", "4"), ("done", "2")):
        assert run(["train", str(place / "text.txt"), "-o", f"runs/{name}", "--steps", steps, *SMALL]) == 0
        state = tmp_path / "runs" / name / "checkpoints" / f"step-{steps}" / "state.json"
        if name != "done":
            unfinish(state)
    assert run(["train", "--resume", "--steps", "6"]) == 0
    assert (tmp_path / "runs/new/last").read_text() == "step-6\n"
    assert (tmp_path / "runs/old/last").read_text() == "step-4\n"


def unfinish(state: Path) -> None:
    """Make a checkpoint look as if more steps had been planned."""
    state.write_text(state.read_text().replace('"finished": true', '"finished": false'))
    manifest = state.with_name("manifest.json")
    sums = json.loads(manifest.read_text())
    sums["sha256"]["state.json"] = hashlib.sha256(state.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(sums))


def test_a_run_whose_tokens_are_gone_takes_its_corpus_again_and_no_other(place, capsys):
    text, folder = place / "gone.txt", place / "gone"
    text.write_text((place / "text.txt").read_text() + "\nseven")
    assert run(["train", str(text), "-o", str(folder), "--steps", "2", *SMALL]) == 0
    shutil.rmtree(json.loads((folder / "config.json").read_text())["plan"]["data"])
    capsys.readouterr()
    assert run(["train", "--resume", str(folder), "--steps", "4"]) == 1
    assert f"name its corpus again (--resume {folder})" in capsys.readouterr().err
    assert run(["train", str(place / "text.txt"), "--resume", str(folder), "--steps", "4"]) == 1
    assert "not the corpus that this run was started on; name its corpus again" in capsys.readouterr().err
    assert run(["train", str(text), "--resume", str(folder), "--steps", "4"]) == 0
    capsys.readouterr()
    assert run(["train", str(place / "text.txt"), "--resume", str(folder), "--steps", "6"]) == 1
    assert f"text.txt: not the corpus that this run was started on; that was {text}" in capsys.readouterr().err


def test_files_that_changed_after_they_were_prepared_are_named(place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = ["longer.txt", "edited.txt", "touched.txt", "gone.txt"]
    for name in names:
        Path(name).write_text((place / "text.txt").read_text() + name)
    assert run(["train", *names, "-o", "run", "--steps", "2", *SMALL]) == 0
    Path("longer.txt").write_text(Path("longer.txt").read_text() + "more")
    Path("edited.txt").write_text(Path("edited.txt").read_text()[::-1])
    Path("touched.txt").touch()
    Path("gone.txt").unlink()
    capsys.readouterr()
    assert run(["train", "--resume", "run", "--steps", "4"]) == 0
    warning = "changed since this run prepared its tokens, which it still uses; to learn the new text, start a new run"
    assert capsys.readouterr().err.count(f"warning longer.txt, edited.txt: {warning} (--from run)\n") == 1


def test_going_on_from_an_older_checkpoint_says_which_ones_will_go(place, capsys, tmp_path):
    shutil.copytree(place / "run", tmp_path / "run")
    assert run(["train", "--resume", str(tmp_path / "run"), "--steps", "33"]) == 0
    older = tmp_path / "run" / "checkpoints" / "step-30"
    capsys.readouterr()
    assert run(["train", "--resume", str(older), "--steps", "32"]) == 0
    assert "step-33: of another branch from here on; removed once this one has saved" in capsys.readouterr().err
    assert {path.name for path in older.parent.iterdir()} == {"step-30", "step-32"}


def test_a_last_checkpoint_that_is_gone_is_told(place, capsys, tmp_path):
    shutil.copytree(place / "run", tmp_path / "run")
    assert run(["train", "--resume", str(tmp_path / "run"), "--steps", "33"]) == 0
    assert "is gone" not in capsys.readouterr().err
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-33")
    assert run(["train", "--resume", str(tmp_path / "run"), "--steps", "33"]) == 0
    told = capsys.readouterr().err
    assert "at step 30 of 33" in told
    assert "step-33, the last checkpoint, is gone: what was learned after step 30 is lost" in told
    assert run(["train", "--resume", str(tmp_path / "run"), "--steps", "34"]) == 0
    assert "is gone" not in capsys.readouterr().err


def test_a_length_that_was_edited_is_noted_with_the_flag_that_it_takes(place, tmp_path, capsys):
    folder = tmp_path / "run"
    flags = ["--steps", "3", "--checkpoint-every", "2", *SMALL]
    assert run(["train", str(place / "text.txt"), "-o", str(folder), *flags]) == 0
    settings = json.loads((folder / "config.json").read_text())
    settings["training"]["steps"] = 9
    (folder / "config.json").write_text(json.dumps(settings))
    capsys.readouterr()
    assert run(["train", "--resume", str(folder / "checkpoints" / "step-2")]) == 0
    assert "--steps 9" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["train", "--resume"], ["train", "--resume", "runs"]),
        (["train", "--resume", "--steps", "9"], ["train", "--resume", "runs", "--steps", "9"]),
        (["train", "--resume", "mine"], ["train", "--resume", "mine"]),
        (["train", "text.txt"], ["train", "text.txt"]),
        (["generate", "--resume"], ["generate", "--resume"]),
        ([], []),
    ],
)
def test_resume_without_a_run_means_the_newest(given, meant):
    assert newest_by_default(given) == meant
