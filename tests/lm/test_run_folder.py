"""Which folder is a run, which checkpoint is meant, and what is read of it without torch.

The folders here are written out by hand: names and formats stay what they are for runs made long ago.
"""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from lm import run_folder
from lm.config.run_config import RunConfig
from lm.errors import InputError
from lm.run_folder import find_checkpoint


@pytest.fixture
def save(tmp_path):
    def save(step: int, *, is_best: bool = False) -> Path:
        folder = tmp_path / "checkpoints" / f"step-{step}"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(RunConfig().to_dict()))
        (folder / "state.json").write_text(json.dumps({"step": step, "best_loss": 1.5}))
        for name in ("tokenizer.json", "model.safetensors", "optimizer.safetensors"):
            (folder / name).write_text("")
        sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
        (folder / "manifest.json").write_text(json.dumps({"sha256": sums}))
        for pointer in ("last", "best") if is_best else ("last",):
            (tmp_path / pointer).write_text(f"step-{step}\n")
        return folder

    return save


def test_the_tokenizer_of_a_run_is_that_of_its_last_checkpoint(save, tmp_path):
    save(3)
    last = save(12)
    assert run_folder.find_tokenizer(tmp_path) == last / "tokenizer.json"
    assert run_folder.find_tokenizer(last) == last / "tokenizer.json"
    assert run_folder.find_tokenizer(last / "tokenizer.json") == last / "tokenizer.json"


def test_which_one(save, tmp_path):
    save(3, is_best=True)
    save(12)
    assert find_checkpoint(tmp_path).name == "step-3"
    assert find_checkpoint(tmp_path, which="last").name == "step-12"
    (tmp_path / "best").unlink()
    assert find_checkpoint(tmp_path).name == "step-12"
    (tmp_path / "last").unlink()
    assert find_checkpoint(tmp_path).name == "step-12"


def test_another_checkpoint_is_never_taken_for_the_best(save, tmp_path):
    shutil.rmtree(save(3, is_best=True))
    with pytest.raises(InputError, match="nor a run"):
        find_checkpoint(tmp_path)
    other = save(12)
    with pytest.raises(InputError, match="the best checkpoint is missing"):
        find_checkpoint(tmp_path)
    assert find_checkpoint(tmp_path, which="last") == find_checkpoint(other) == other


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"sha256": 3}', b'{"step": "x", "format_version": 3}', b"\xff"]
)
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("config.json", run_folder.load_config), ("state.json", run_folder.load_state),
        ("manifest.json", run_folder.verify_checkpoint),
    ],
)  # fmt: skip
def test_a_damaged_file_of_a_checkpoint_is_refused_in_a_line(save, name, read, content):
    folder = save(3)
    (folder / name).write_bytes(content)
    with pytest.raises(InputError, match=name):
        read(folder)


def test_a_half_written_checkpoint_is_none(save, tmp_path):
    save(3)
    (save(12) / "manifest.json").unlink()
    assert find_checkpoint(tmp_path, which="last").name == "step-3"
