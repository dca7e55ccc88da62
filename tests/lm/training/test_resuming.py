"""A resumed run is as if it had never stopped, and a checkpoint of it can be copied into a new run."""

import dataclasses
from pathlib import Path

import pytest
import torch

from lm import files, run_folder
from lm.errors import UsageError
from lm.training.loop import train
from lm.training.run import copy_checkpoint
from lm.training.run_log import Evaluation, StoppedEarly
from tests.lm.training.conftest import metrics_lines, stop_after, sums
from tests.lm.training.runs import resume_run

EXPERTS = {"experts": 4, "experts_per_token": 2, "expert_capacity": 1.0, "gate_noise": 1.0, "members": 2}


@pytest.mark.parametrize(("stop", "optimizer", "model"), [(1, "adamw", {}), (7, "muon", EXPERTS)])
def test_resuming_equals_never_having_stopped(make_run, stop, optimizer, model):
    """Weights, optimizer and metrics, byte for byte: with dropout, accumulation and a falling rate."""
    settings = {"micro_batch_size": 4, "optimizer": optimizer, "model": model}
    whole, parts = make_run("whole", **settings), make_run("parts", **settings)
    list(train(whole))
    stopped = list(train(parts, stop=stop_after(stop)))
    assert isinstance(stopped[-1], StoppedEarly)
    resumed = resume_run(parts.folder)
    assert resumed.state.step == stop
    list(train(resumed))
    assert sums(whole)["model.safetensors"] == sums(resumed)["model.safetensors"]
    assert sums(whole)["optimizer.safetensors"] == sums(resumed)["optimizer.safetensors"]
    assert metrics_lines(whole) == metrics_lines(resumed)
    assert sum("gradient_norm" in line for line in metrics_lines(whole)) == 12


def test_device_and_dtype_may_change(make_run):
    run = make_run()
    list(train(run, stop=stop_after(1)))
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="no cuda device"):
            resume_run(run.folder, changed={"hardware": {"device": "cuda"}})
    again = resume_run(run.folder, changed={"hardware": {"dtype": "bfloat16"}})
    assert (again.hardware.device, again.hardware.dtype) == ("cpu", "bfloat16")


@pytest.mark.medium
@pytest.mark.parametrize(
    ("stops", "settings"), [([5], {}), ([3, 5, 10], {"checkpoint_every": 0, "sample": ["ba du"], "ema": 0.8})]
)
def test_an_evaluation_that_stopping_puts_off_comes_first_on_resuming(make_run, stops, settings):
    """The metrics and the best checkpoint are as if the run had never stopped, however often it does."""
    whole, parts = make_run("whole", **settings), make_run("parts", **settings)
    list(train(whole))
    last = 0
    for step in stops:
        events = list(train(parts, stop=stop_after(step - last)))
        assert not any(isinstance(event, Evaluation) and event.step == step for event in events)
        parts, last = resume_run(parts.folder), step
    list(train(parts))
    assert metrics_lines(whole) == metrics_lines(parts)
    for which in ("best", "last"):
        ours, theirs = (run_folder.find_checkpoint(run.folder, which=which) for run in (whole, parts))
        assert ours.name == theirs.name
        assert files.sha256(ours / "model.safetensors") == files.sha256(theirs / "model.safetensors")
    assert dataclasses.replace(parts.state, training_seconds=0.0) == dataclasses.replace(
        whole.state, training_seconds=0.0
    )


@pytest.mark.parametrize("settings", [{}, {"learning_rate": 0.0}])
def test_a_checkpoint_that_is_copied_into_a_new_run_resumes_exactly(make_run, tmp_path, settings):
    """With the best checkpoint that it knows, though that is an earlier one; the first run stays as it is."""
    run = make_run(checkpoint_every=4, keep_checkpoints=0, **settings)
    list(train(run))
    before = contents(run.folder)
    copy_checkpoint(run.folder / "checkpoints" / "step-8", tmp_path / "copy")
    resumed = resume_run(tmp_path / "copy")
    assert resumed.state.step == 8
    list(train(resumed))
    assert contents(run.folder) == before
    assert sums(run)["model.safetensors"] == sums(resumed)["model.safetensors"]
    assert sums(run)["optimizer.safetensors"] == sums(resumed)["optimizer.safetensors"]
    assert metrics_lines(run) == metrics_lines(resumed)
    assert run_folder.find_checkpoint(run.folder).name == run_folder.find_checkpoint(resumed.folder).name


def contents(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
