"""Checkpoints are written atomically, and damage is detected."""

import shutil

import pytest
import torch

from lm import checkpoint, run_folder
from lm.checkpoint import load_model, save_checkpoint
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig, TokenizerConfig
from lm.errors import InputError
from lm.hardware import Hardware
from lm.model import build_model
from lm.run_folder import TrainingState, find_checkpoint
from lm.tokenizer import training
from lm.training.derived_runs import write_derived_run

CPU = Hardware("cpu", "float32", 2)


@pytest.fixture
def save(tmp_path):
    config = RunConfig(model=ModelConfig(vocab_size=257, d_model=16, n_layers=1, n_heads=2, context_length=8))
    tokenizer = training.train([], TokenizerConfig(kind="byte"), corpus_bytes=0)

    def save(step: int, *, is_best: bool = False, moments: int = 3, best_step: int | None = None, **fields):
        model = build_model(config.model, seed=step).state_dict()
        optimizer = {"embedding.tokens.weight.exp_avg": torch.ones(moments)}
        return save_checkpoint(
            tmp_path, config=config, tokenizer=tokenizer, model=model, optimizer=optimizer,
            state=TrainingState(step=step, best_loss=1.5, best_step=best_step), is_best=is_best, **fields,
        )  # fmt: skip

    return save


def test_what_is_saved_is_loaded(save, tmp_path):
    folder = save(3)
    loaded = load_model(tmp_path, CPU)
    assert loaded.folder == folder
    assert loaded.config.model.d_model == 16
    assert loaded.tokenizer.encode("é") == [*"é".encode()]
    expected = build_model(loaded.config.model, seed=3).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in loaded.model.state_dict().items())
    assert not loaded.model.training
    assert run_folder.load_state(folder) == TrainingState(step=3, best_loss=1.5)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "state.json"])
def test_damage_is_noticed_and_named(save, tmp_path, name):
    path = save(3) / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"{name}: missing, or differs"):
        load_model(tmp_path, CPU)


def test_what_a_killed_process_has_left_is_removed(save, tmp_path):
    save(3)
    shutil.copytree(tmp_path / "checkpoints" / "step-3", tmp_path / "checkpoints" / ".step-5.4321")
    shutil.copytree(tmp_path / "checkpoints" / "step-3", tmp_path / "checkpoints" / ".step-1.removed")
    (tmp_path / ".best.4321").write_text("step-")
    (tmp_path / ".config.json.4321").write_text("{")
    (tmp_path / ".notes").write_text("mine")
    checkpoint.clean_up(tmp_path)
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"step-3"}
    assert {path.name for path in tmp_path.glob(".*")} == {".notes"}


def test_a_checkpoint_is_on_the_disk_before_it_is_renamed_and_named_after(save, disk):
    files_of_it = {path.name for path in save(3).iterdir()}
    disk.entries.clear()
    save(12, is_best=True)
    renamed = next(at for at, (what, name) in enumerate(disk.entries) if name.endswith("-> step-12"))
    before, after = disk.entries[:renamed], disk.entries[renamed + 1 :]
    unfinished = disk.entries[renamed][1].partition(" -> ")[0]
    assert disk.synced_before("step-12") == files_of_it | {"step-12"}
    assert [name.partition(" -> ")[2] for what, name in before if what == "rename"][-1] == "manifest.json"
    assert ("sync", unfinished) in before
    assert after[0] == ("sync", "checkpoints")
    assert [name.partition(" -> ")[2] for what, name in after if what == "rename"] == ["last", "best"]


@pytest.mark.parametrize("keeps_scores", [True, False])
def test_a_derived_run_is_finished_and_has_scores_if_they_hold(save, tmp_path, keeps_scores):
    source = save(3, is_best=True, best_step=3)
    weights = {name: value + 1 for name, value in checkpoint.load_weights(source).items()}
    folder = write_derived_run(source, tmp_path / "derived", weights, keeps_scores=keeps_scores)
    assert find_checkpoint(tmp_path / "derived") == folder == tmp_path / "derived" / "checkpoints" / "step-3"
    scores = {"best_loss": 1.5, "best_step": 3} if keeps_scores else {}
    assert run_folder.load_state(folder) == TrainingState(step=3, finished=True, **scores)
    assert run_folder.load_config(folder).plan is None
    found = checkpoint.load_weights(tmp_path / "derived")
    assert all(torch.equal(value, weights[name]) for name, value in found.items())


def test_a_checkpoint_that_a_killed_process_never_pointed_to_is_written_again(save, tmp_path):
    save(3)
    optimizer = save(12, moments=3) / "optimizer.safetensors"
    checkpoint.set_pointer(tmp_path / "checkpoints" / "step-3", "last")
    sizes = []
    for moments in (5, 7):  # the second time it is the last one, which has the same weights
        save(12, moments=moments)
        sizes.append(run_folder.count_parameters(optimizer.parent, optimizer.name))
    assert sizes == [5, 5]
    assert find_checkpoint(tmp_path, which="last").name == "step-12"


def test_the_latest_checkpoints_stay_and_those_that_are_named(save, tmp_path):
    for step in (1, 2, 3, 4, 5):
        save(step, is_best=step == 2)
    steps = lambda: [run_folder.checkpoint_step(folder) for folder in run_folder.list_checkpoints(tmp_path)]  # noqa: E731
    checkpoint.prune_checkpoints(tmp_path, keep=0)
    assert steps() == [1, 2, 3, 4, 5]
    checkpoint.prune_checkpoints(tmp_path, keep=2)
    assert steps() == [2, 4, 5]
