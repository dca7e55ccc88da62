"""Adapters are trained by the loop that trains all else; the weights beside them stay, and are not saved again."""

import dataclasses
import shutil

import pytest
import torch
from safetensors.torch import load_file

from lm import run_folder
from lm.checkpoint import load_model, load_weights
from lm.config.run_config import HardwareConfig, LoraConfig, TrainingConfig
from lm.errors import InputError, UsageError
from lm.hardware import select_hardware
from lm.model.lora import lora_layers
from lm.training.derived_runs import write_merged_run
from lm.training.loop import train
from lm.training.run import Run
from lm.training.run_log import list_runs
from lm.training.training_corpus import TrainingCorpus
from tests.lm.training.conftest import copy_run, loss_of, metrics_lines, new_run, stop_after, sums
from tests.lm.training.runs import resume_run, start_run
from tests.tolerances import assert_close

CPU = select_hardware(HardwareConfig())


@pytest.fixture(scope="module")
def trained(tmp_path_factory, shards, byte_tokenizer) -> Run:
    run = new_run(tmp_path_factory.mktemp("runs") / "base", shards, byte_tokenizer, learning_rate=5e-3)
    list(train(run))
    return run


@pytest.fixture
def base(trained, tmp_path) -> Run:
    """A run to adapt, after some steps."""
    return copy_run(trained, tmp_path / "base")


@pytest.fixture
def adapt(base, shards, byte_tokenizer):
    """Start a run with adapters to `base`."""

    def begin(name: str = "adapted", *, lora: LoraConfig | None = None, model: dict | None = None, **training):
        settings = dataclasses.replace(base.config.training, learning_rate=1e-2, **training)
        config = dataclasses.replace(base.config, training=settings, lora=lora or LoraConfig(rank=2))
        found = run_folder.find_checkpoint(base.folder)
        data = TrainingCorpus(shards, byte_tokenizer)
        return start_run(base.folder.parent / name, config, data, from_run=found)

    return begin


SETTINGS = [{}, {"optimizer": "muon", "ema": 0.8, "r_drop": 0.5, "micro_batch_size": 2}]


@pytest.mark.medium
@pytest.mark.parametrize("settings", SETTINGS)
def test_resuming_equals_never_having_stopped(adapt, settings):
    lora = LoraConfig(rank=3, dropout=0.2)
    whole = adapt("whole", lora=lora, **settings)
    list(train(whole))
    list(train(adapt("part", lora=lora, **settings), stop=stop_after(7)))
    part = resume_run(whole.folder.parent / "part")
    list(train(part))
    ours, theirs = sums(part), sums(whole)
    assert {name for name in ours if ours[name] != theirs[name]} <= {"state.json", "config.json"}
    assert metrics_lines(part) == metrics_lines(whole)


@pytest.mark.parametrize("settings", SETTINGS[:1])
def test_only_adapters_change_and_only_they_are_saved(base, adapt, settings):
    run = adapt(**settings)
    before, first = {name: value.clone() for name, value in run.model.state_dict().items()}, loss_of(run)
    run.model.train()
    list(train(run))
    for name, value in run.model.state_dict().items():
        assert torch.equal(value, before[name]) is (".lora_" not in name)
    found = run_folder.find_checkpoint(run.folder)
    saved = load_file(found / "model.safetensors")
    assert saved.keys() == {f"{name}.lora_{kind}" for name in lora_layers(run.model) for kind in "ab"}
    optimizer = load_file(found / "optimizer.safetensors")
    assert optimizer
    assert all(".lora_" in name for name in optimizer)
    assert loss_of(run) < first
    assert first == loss_of(base)


def test_a_loaded_run_is_the_base_with_the_adapters_added(base, adapt):
    """As trained, as merged at loading, as a run that `merge` writes, and as the weights that another starts from."""
    run = adapt(optimizer="muon", evaluate_every=0)
    list(train(run))
    tokens = torch.randint(256, (2, 16))
    run.model.eval()
    with torch.no_grad():
        expected = run.model(tokens)
        assert not torch.allclose(expected, base.model.eval()(tokens), atol=1e-3)
        loaded = load_model(run.folder, CPU)
        assert_close(loaded.model(tokens), expected, model=run.model)
    assert not lora_layers(loaded.model)
    made = write_merged_run(run.folder, run.folder.parent / "merged")
    shutil.rmtree(base.folder)
    again = load_model(run.folder.parent / "merged", CPU)
    for name, value in loaded.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value)
    assert not again.config.lora
    assert run_folder.load_state(made).best_loss == run.state.best_loss
    with pytest.raises(UsageError, match="has no adapters"):
        write_merged_run(run.folder.parent / "merged", run.folder.parent / "twice")


def test_adapters_are_used_and_trained_after_their_base_has_gone(base, adapt, tmp_path):
    """Be it as the base is trained on, and keeps its latest checkpoint only, or since it is removed."""
    run = adapt(steps=3)
    list(train(run))
    before, tokens = load_weights(run.folder), torch.randint(256, (2, 16))
    own, theirs = run.folder / "base.safetensors", run_folder.find_checkpoint(base.folder) / "model.safetensors"
    assert own.samefile(theirs)
    expected = load_model(run.folder, CPU).model(tokens)
    sizes = {summary.folder.name: summary.parameters for summary in list_runs(tmp_path)[0]}
    assert sizes["adapted"] > sizes["base"]
    for step in range(13, 15):
        list(
            train(
                resume_run(
                    base.folder, new_length=TrainingConfig(steps=step), changed={"training": {"keep_checkpoints": 1}}
                )
            )
        )
    assert not theirs.exists()
    shutil.rmtree(base.folder)
    assert torch.equal(load_model(run.folder, CPU).model(tokens), expected)
    shutil.move(run.folder, tmp_path / "elsewhere")
    assert all(torch.equal(value, before[name]) for name, value in load_weights(tmp_path / "elsewhere").items())
    list(train(resume_run(tmp_path / "elsewhere", new_length=TrainingConfig(steps=5))))


def test_other_weights_are_never_taken_for_the_base(base, adapt, make_run):
    run = adapt(steps=3)
    list(train(run))
    other = make_run("other", seed=1)
    list(train(other))
    own = run.folder / "base.safetensors"
    own.unlink()
    shutil.copy(run_folder.find_checkpoint(other.folder) / "model.safetensors", own)
    with pytest.raises(InputError, match=r"base.safetensors: missing, or not the weights that .* adapts"):
        load_weights(run.folder)
    own.unlink()
    for use in (load_weights, lambda folder: resume_run(folder, new_length=TrainingConfig(steps=5))):
        with pytest.raises(InputError, match=r"base.safetensors: missing, or not the weights"):
            use(run.folder)
