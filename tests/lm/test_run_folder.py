"""Which folder is a run, which checkpoint is meant, and what is read of it without torch.

The folders here are written out by hand: names and formats stay what they are for runs made long ago.
"""

import hashlib
import json
import random
import shutil
import struct
from pathlib import Path

import pytest

from lm import run_folder
from lm.config.run_config import RunConfig
from lm.errors import InputError
from lm.run_folder import find_checkpoint


def weights(**shapes: list[int]) -> bytes:
    """A file of tensors of these shapes, all of it zeros but the header."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        size = 4
        for length in shape:
            size *= length
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    written = json.dumps(header).encode()
    return struct.pack("<Q", len(written)) + written + bytes(end)


@pytest.fixture
def save(tmp_path):
    def save(step: int, *, is_best: bool = False) -> Path:
        folder = tmp_path / "checkpoints" / f"step-{step}"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(RunConfig().to_dict()))
        (folder / "state.json").write_text(json.dumps({"step": step, "best_loss": 1.5}))
        (folder / "model.safetensors").write_bytes(weights(embedding=[5, 3], norm=[3], scale=[]))
        for name in ("tokenizer.json", "optimizer.safetensors"):
            (folder / name).write_text("")
        sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
        (folder / "manifest.json").write_text(json.dumps({"sha256": sums}))
        for pointer in ("last", "best") if is_best else ("last",):
            (tmp_path / pointer).write_text(f"step-{step}\n")
        return folder

    return save


def test_a_checkpoint_that_stands_alone_is_of_no_run(save, tmp_path):
    moved = save(3).rename(tmp_path / "elsewhere")
    assert find_checkpoint(moved) == moved


def test_the_tokenizer_of_a_run_is_that_of_its_last_checkpoint(save, tmp_path):
    save(3)
    last = save(12)
    assert run_folder.find_tokenizer(tmp_path) == last / "tokenizer.json"
    assert run_folder.find_tokenizer(last) == last / "tokenizer.json"
    assert run_folder.find_tokenizer(last / "tokenizer.json") == last / "tokenizer.json"


def test_checkpoints_come_in_the_order_of_their_steps(save, tmp_path):
    made = [save(step) for step in (20, 3, 100)]
    shutil.copytree(made[0], tmp_path / "checkpoints" / "step-20-backup")
    assert [folder.name for folder in run_folder.list_checkpoints(tmp_path)] == ["step-3", "step-20", "step-100"]
    assert run_folder.checkpoint_folder(tmp_path, 20) == made[0]
    assert run_folder.checkpoint_step(made[2]) == 100


def test_which_one(save, tmp_path):
    save(3, is_best=True)
    save(12)
    assert find_checkpoint(tmp_path).name == "step-3"
    assert find_checkpoint(tmp_path, which="last").name == "step-12"
    (tmp_path / "best").unlink()
    assert find_checkpoint(tmp_path).name == "step-12"
    (tmp_path / "last").unlink()
    assert find_checkpoint(tmp_path).name == "step-12"


def test_the_files_that_name_a_checkpoint_stand_for_it(save, tmp_path):
    best, last = save(3, is_best=True), save(5)
    for name, checkpoint in (("best", best), ("last", last)):
        assert find_checkpoint(tmp_path / name) == checkpoint
        assert run_folder.find_tokenizer(tmp_path / name) == checkpoint / "tokenizer.json"
        assert run_folder.describe_parent(tmp_path / name) == f"from {tmp_path.name}"
    with pytest.raises(InputError, match="not a run"):
        find_checkpoint(tmp_path / "checkpoints" / "step-3" / "config.json")


def test_another_checkpoint_is_never_taken_for_the_best(save, tmp_path):
    shutil.rmtree(save(3, is_best=True))
    with pytest.raises(InputError, match="no checkpoint"):
        find_checkpoint(tmp_path)
    other = save(12)
    with pytest.raises(InputError, match="the best checkpoint is missing"):
        find_checkpoint(tmp_path)
    assert find_checkpoint(tmp_path, which="last") == find_checkpoint(other) == other


VALUES = [None, True, -1, 1.5, 10**400, 2**64, float("inf"), float("nan"), 1e308, "", "\ud800", [], [1], {}, {"a": 1}]


def damaged(content: bytes, chance: random.Random) -> bytes:
    """A JSON file with another value in one place, or with other bytes."""
    values = json.loads(content)
    if chance.random() < 0.7:
        place = values
        while isinstance(place, dict) and place:
            name = chance.choice(list(place))
            if not isinstance(place[name], dict) or chance.random() < 0.2:
                place[name] = chance.choice(VALUES)
                break
            place = place[name]
        return json.dumps(values).encode()
    spoiled = bytearray(content)
    for _ in range(chance.choice([1, 2, 9])):
        spoiled[chance.randrange(len(spoiled))] = chance.choice([*b'[{"9', 0, 0x80, 0xED, chance.randrange(256)])
    return bytes(spoiled[: chance.choice([len(spoiled), chance.randrange(len(spoiled))])])


@pytest.mark.parametrize("name", ["config.json", "state.json", "manifest.json"])
def test_a_file_of_a_checkpoint_is_read_or_refused_in_a_line_however_it_is_damaged(save, tmp_path, name):
    folder, chance = save(3), random.Random(name)
    whole = (folder / name).read_bytes()
    refused = 0
    for _ in range(150):
        (folder / name).write_bytes(damaged(whole, chance))
        readers = (run_folder.load_config, run_folder.load_state, run_folder.verify_checkpoint, run_folder.weights_key)
        said = [_refusal(each, folder) for each in readers]
        assert all(str(folder) in each for each in said if each)
        refused += any(said)
    assert refused > 75


def _refusal(read, folder) -> str | None:
    try:
        read(folder)
    except InputError as error:
        return str(error)
    return None


def test_a_half_written_checkpoint_is_none(save, tmp_path):
    save(3)
    (save(12) / "manifest.json").unlink()
    assert find_checkpoint(tmp_path, which="last").name == "step-3"
