"""Which folder is a run, which checkpoint is meant, and what is read of it without torch.

The folders here are written out by hand: names and formats stay what they are for runs made long ago.
"""

import ast
import hashlib
import json
import random
import re
import shutil
import struct
from pathlib import Path

import pytest

from lm import run_folder
from lm.config.run_config import RunConfig
from lm.errors import InputError
from lm.run_folder import TrainingState, find_checkpoint
from lm.tokenizer.tokenizer import FILE_NAME

ROOT = Path(__file__).parents[2]


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


def test_no_other_module_spells_the_names_of_a_run():
    """`tokenizer.json` and `manifest.json` are names that other folders have too, so they are not looked for."""
    names = {"config.json", "checkpoints", "metrics.jsonl", "timings.jsonl", "tensorboard", "state.json",
             "model.safetensors", "optimizer.safetensors", ".lock"}  # fmt: skip
    found = {
        (str(path.relative_to(ROOT)), text)
        for folder in ("cli", "lm")
        for path in (ROOT / folder).rglob("*.py")
        if any(name in path.read_text() for name in {*names, "step-"})
        for text in strings(path)
        if names & set(text.split("/")) or re.search(r"(^|/)\.?step-", text)
    }
    layouts = {"lm/run_folder.py", "lm/interop/hugging_face/folder.py"}  # transformers calls two files the same
    packages = {("cli/training/tensorboard.py", "tensorboard")}
    assert {path for path, _ in found - packages} == layouts, found
    assert run_folder.TOKENIZER == FILE_NAME


def strings(path: Path) -> list[str]:
    """The strings in a module, its docstrings and whole sentences aside."""
    tree = ast.parse(path.read_text())
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [node.value for node in texts if id(node) not in said and " " not in node.value]


def test_what_is_read_of_a_checkpoint(save, tmp_path):
    folder = save(3)
    assert run_folder.load_config(folder) == RunConfig()
    assert run_folder.load_state(folder) == TrainingState(step=3, best_loss=1.5)
    assert run_folder.count_parameters(folder) == 5 * 3 + 3 + 1
    run_folder.verify_checkpoint(folder)
    assert run_folder.is_checkpoint(folder)
    assert run_folder.is_run(tmp_path)
    assert not run_folder.is_run(folder)
    assert run_folder.find_run(folder) == run_folder.find_run(tmp_path) == tmp_path


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"\xff" * 100, struct.pack("<Q", 4) + b"null", struct.pack("<Q", 13) + b'{"norm": [3]}']
)
def test_weights_without_a_header_are_told_of(save, content):
    folder = save(3)
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(InputError, match=r"step-3/model\.safetensors: not a \.safetensors file that can be read"):
        run_folder.count_parameters(folder)


def test_a_folder_of_runs_is_told_from_a_run(save, tmp_path):
    save(3)
    runs = tmp_path / "runs"
    shutil.copytree(tmp_path / "checkpoints", runs / "novel" / "checkpoints")
    (runs / "notes").mkdir()
    assert run_folder.list_run_folders(runs) == [runs / "novel"]
    assert run_folder.contains_runs(runs)
    assert not any(run_folder.contains_runs(runs / name) for name in ("novel", "notes", "nowhere"))


def test_a_checkpoint_that_stands_alone_is_of_no_run(save, tmp_path):
    moved = save(3).rename(tmp_path / "elsewhere")
    assert find_checkpoint(moved) == moved
    with pytest.raises(InputError, match=r"elsewhere: not in the checkpoints/ of a run"):
        run_folder.find_run(moved)


def test_the_tokenizer_of_a_run_is_that_of_its_last_checkpoint(save, tmp_path):
    save(3)
    last = save(12)
    assert run_folder.find_tokenizer(tmp_path) == last / "tokenizer.json"
    assert run_folder.find_tokenizer(last) == last / "tokenizer.json"
    assert run_folder.find_tokenizer(last / "tokenizer.json") == last / "tokenizer.json"
    (tmp_path / "last").write_text("../step-3")
    with pytest.raises(InputError, match="no tokenizer.json in this folder, and it is no run with checkpoints"):
        run_folder.find_tokenizer(tmp_path)


def test_a_log_is_beside_checkpoints(save, tmp_path):
    save(3)
    assert run_folder.is_log(tmp_path / "metrics.jsonl")
    assert not run_folder.is_log(tmp_path / "notes.jsonl")
    assert not run_folder.is_log(tmp_path.parent / "metrics.jsonl")


def test_checkpoints_come_in_the_order_of_their_steps(save, tmp_path):
    made = [save(step) for step in (20, 3, 100)]
    shutil.copytree(made[0], tmp_path / "checkpoints" / "step-20-backup")
    assert [folder.name for folder in run_folder.list_checkpoints(tmp_path)] == ["step-3", "step-20", "step-100"]
    assert [folder.name for folder in run_folder.checkpoints_after(tmp_path, 3)] == ["step-20", "step-100"]
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
        assert run_folder.find_run(tmp_path / name) == tmp_path
        assert run_folder.find_tokenizer(tmp_path / name) == checkpoint / "tokenizer.json"
        assert run_folder.describe_parent(tmp_path / name) == f"from {tmp_path.name}"
    with pytest.raises(InputError, match="not a run"):
        find_checkpoint(tmp_path / "checkpoints" / "step-3" / "config.json")


def test_another_checkpoint_is_never_taken_for_the_best(save, tmp_path):
    shutil.rmtree(save(3, is_best=True))
    with pytest.raises(InputError, match="not a run"):
        find_checkpoint(tmp_path)
    other = save(12)
    with pytest.raises(InputError, match=rf"step-3: the best checkpoint is missing; .* {other}"):
        find_checkpoint(tmp_path)
    assert find_checkpoint(tmp_path, which="last") == find_checkpoint(other) == other


@pytest.mark.parametrize("content", ["{}", "[]", '{"sha256": {}}', '{"sha256": []}', '{"sha256": {"config.json": ""}}'])
def test_a_manifest_that_is_none(save, content):
    folder = save(3)
    (folder / "manifest.json").write_text(content)
    with pytest.raises(InputError, match="step-3/manifest.json: not the manifest of a checkpoint"):
        run_folder.verify_checkpoint(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "state.json"])
@pytest.mark.parametrize("checksum", [0, 10**30, None, ["a"], {}])
def test_a_checksum_that_is_no_text_is_of_no_manifest(save, name, checksum):
    folder = save(3)
    values = json.loads((folder / "manifest.json").read_text())
    values["sha256"][name] = checksum
    (folder / "manifest.json").write_text(json.dumps(values))
    for read in (run_folder.verify_checkpoint, run_folder.weights_key):
        with pytest.raises(InputError, match="step-3/manifest.json: not the manifest of a checkpoint"):
            read(folder)


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


def test_a_pointer_that_is_no_text_points_nowhere(save, tmp_path):
    folder = save(3)
    (tmp_path / "last").write_bytes(b"\xff\xfe")
    assert find_checkpoint(tmp_path, which="last") == folder


def test_a_half_written_checkpoint_is_none(save, tmp_path):
    save(3)
    (save(12) / "manifest.json").unlink()
    assert find_checkpoint(tmp_path, which="last").name == "step-3"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "not a run"),
        ({"config.json": "{}"}, "not a run"),
        ({"config.json": "{}", "checkpoints/x": ""}, "no checkpoint yet"),
    ],
)
def test_a_folder_that_is_no_run(tmp_path, content, message):
    for name, text in content.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        find_checkpoint(tmp_path)
    with pytest.raises(InputError, match="no such run"):
        find_checkpoint(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "content",
    [
        {"config.json": '{"architectures": ["GPT2LMHeadModel"]}', "model.safetensors": ""},
        {"config.json": "{}", "checkpoints/": ""},
        {"notes.txt": "mine"},
        {"checkpoints/epoch=3.ckpt": ""},
        {"checkpoints/": "", "metrics.jsonl": "", "figures/": ""},
    ],
)
def test_a_folder_that_holds_other_things_is_no_place_for_a_run(tmp_path, content):
    fill(tmp_path, content)
    with pytest.raises(InputError, match=r"holds what is no run's \(.*\); choose an empty or a new folder"):
        run_folder.refuse_existing(tmp_path)


@pytest.mark.parametrize(
    "content", [{}, {".lock": "", ".gitkeep": ""}, {"checkpoints/": ""}, {"checkpoints/": "", "metrics.jsonl": ""}]
)
def test_an_empty_folder_is_one(tmp_path, content):
    fill(tmp_path, content)
    run_folder.refuse_existing(tmp_path)
    run_folder.refuse_existing(tmp_path / "new")


def fill(folder, content):
    for name, text in content.items():
        if name.endswith("/"):
            (folder / name).mkdir()
        else:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)


def test_a_newer_format_is_refused_by_name(save):
    folder = save(3)
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, "format_version": 99}))
    with pytest.raises(InputError, match="config.json: format version 99"):
        run_folder.load_config(folder)


def test_a_run_begins_with_nothing_behind_it():
    begun = TrainingState()
    assert (begun.step, begun.samples, begun.tokens, begun.flops) == (0, 0, 0, 0)
    assert (begun.training_seconds, begun.budget_seconds_used) == (0, 0)
    assert begun.best_loss is begun.best_bleu is begun.best_step is None
    assert begun.finished is False


def test_a_checkpoint_that_is_not_there_is_told_from_a_run_that_is_not(save, tmp_path):
    save(3)
    with pytest.raises(InputError, match="step-9: no such checkpoint; there is step-3"):
        find_checkpoint(tmp_path / "checkpoints" / "step-9")
    with pytest.raises(InputError, match="no such run"):
        find_checkpoint(tmp_path / "elsewhere" / "step-9")
    (tmp_path / "other" / "checkpoints").mkdir(parents=True)
    with pytest.raises(InputError, match="no such run"):
        find_checkpoint(tmp_path / "other" / "checkpoints" / "step-9")


def test_a_misspelled_run_is_suggested_as_it_is_to_be_typed(tmp_path, monkeypatch):
    (tmp_path / "runs" / "clean" / "checkpoints").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for folder, near in ((tmp_path, Path("runs/clea")), (tmp_path / "runs", Path("clea"))):
        monkeypatch.chdir(folder)
        with pytest.raises(InputError, match=rf"^{near}: no such run \(did you mean '{near}n'\?\)$"):
            find_checkpoint(near)


@pytest.mark.parametrize("content", ["", "[1]", "x" * 5000])
def test_a_pointer_to_no_checkpoint_is_told_from_one_that_is_gone(save, tmp_path, content):
    folder = save(3, is_best=True)
    (tmp_path / "last").write_text(content)
    assert find_checkpoint(tmp_path, which="last") == folder
    (tmp_path / "best").write_text(content)
    with pytest.raises(InputError, match=r"/best: .* name another one, such as .*step-3$"):
        find_checkpoint(tmp_path)


def test_a_state_is_of_finite_numbers(save):
    folder = save(3)
    state = folder / "state.json"
    state.write_text(state.read_text().replace("1.5", "NaN"))
    with pytest.raises(InputError, match=r"state\.json: best_loss must be a finite number, not nan"):
        run_folder.load_state(folder)


@pytest.mark.parametrize("name", ["step", "samples", "tokens", "best_step"])
def test_a_state_has_no_negative_counts(save, name):
    folder = save(3)
    state = folder / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), name: -1}))
    with pytest.raises(InputError, match=rf"state\.json: {name} must be at least 0, not -1"):
        run_folder.load_state(folder)


@pytest.mark.parametrize(
    ("names", "said"), [(["b", "a"], r"\(a, b\)"), (["c", "b", "a"], r"\(a, b, c\)"), (list("dcba"), r"\(a, b, c, …\)")]
)
def test_three_of_what_is_no_runs_are_named(tmp_path, names, said):
    for name in names:
        (tmp_path / name).write_text("")
    with pytest.raises(InputError, match=said):
        run_folder.refuse_existing(tmp_path)


def test_who_does_not_train_on_needs_no_optimizer(save):
    folder = save(3)
    (folder / "optimizer.safetensors").write_bytes(b"damaged")
    run_folder.verify_checkpoint(folder, to_train=False)
    with pytest.raises(InputError, match="optimizer.safetensors: differs"):
        run_folder.verify_checkpoint(folder)
    (folder / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(InputError, match="model.safetensors: differs"):
        run_folder.verify_checkpoint(folder, to_train=False)
