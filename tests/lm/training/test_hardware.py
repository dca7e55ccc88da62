"""What a run trains in: measured where nothing is said, written down, and only read afterwards."""

import json

import numpy as np
import pytest
import torch

from lm.config.model import ModelConfig
from lm.config.run_config import HardwareConfig, RunConfig, TrainingConfig
from lm.data import Batch
from lm.hardware import MAX_THREADS, Hardware, native_dtypes
from lm.model import build_model
from lm.training import objective
from lm.training.loop import train
from lm.training.objective import select_fastest, select_training_hardware, summed_loss, training_state_bytes
from lm.training.optimizers import Muon, build_optimizers
from tests.lm.training.runs import resume_run

IDS = np.arange(48).reshape(4, 12)


@pytest.fixture(autouse=True)
def measured(monkeypatch):
    """Here what is fastest is measured, not the first choice."""
    monkeypatch.setattr(objective, "select_fastest", select_fastest)


@pytest.mark.parametrize(("ratio", "is_chosen"), [(2.0, False), (0.97, False), (0.91, False), (0.89, True)])
def test_what_clearly_takes_least_is_chosen_and_else_the_first(ratio, is_chosen):
    """Also where a slow moment of the machine slows all choices of a round alike."""
    moments = [1, 1, 50, 50, 1, 1, 9, 9]
    assert select_fastest([1.0, ratio], lambda choice: choice * (moments.pop(0) if moments else 1)) == (
        ratio if is_chosen else 1.0
    )


@pytest.mark.parametrize("is_encoder_decoder", [False, True])
def test_what_is_said_is_not_measured(is_encoder_decoder):
    model = ModelConfig(vocab_size=50, context_length=16, d_model=16, n_layers=3, n_heads=2,
                        n_encoder_layers=2 * is_encoder_decoder)  # fmt: skip
    batch = Batch(IDS, IDS, IDS, np.full(4, 12)) if is_encoder_decoder else Batch(IDS, IDS)
    for dtype in ("float32", "bfloat16"):
        config = RunConfig(model, hardware=HardwareConfig(device="cpu", dtype=dtype, threads=1))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(objective, "summed_loss", lambda *_: pytest.fail("was measured"))
            found = select_training_hardware(config, batch)
        assert (found.dtype, torch.get_num_threads()) == (dtype, 1)
    free = select_training_hardware(RunConfig(model, training=TrainingConfig(optimizer="muon")), batch)
    assert free.dtype in native_dtypes(free.device)
    assert 1 <= free.threads == torch.get_num_threads() <= MAX_THREADS


def test_a_resumed_run_reads_what_was_chosen(make_run, monkeypatch):
    run = make_run(optimizer="muon", steps=4, evaluate_every=2)
    list(train(run, stop=lambda: True))
    for path in run.folder.rglob("config.json"):
        config = json.loads(path.read_text())
        config["plan"] |= {"dtype": "bfloat16"}
        path.write_text(json.dumps(config))
    monkeypatch.setattr(objective, "select_fastest", lambda *_: pytest.fail("was measured again"))
    monkeypatch.setattr(
        "lm.run_folder.verify_checkpoint", lambda folder, **_: None
    )  # the sums are of what was there before
    again = resume_run(run.folder)
    assert again.hardware.dtype == "bfloat16"
    (muon,) = [optimizer for optimizer in again.optimizers if isinstance(optimizer, Muon)]
    assert muon._dtype is torch.bfloat16


@pytest.mark.parametrize("ema", [0.0, 0.9])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_memory_of_training_is_that_of_the_tensors_of_model_and_optimizers(optimizer, ema):
    shape = ModelConfig(vocab_size=64, context_length=32, d_model=32, n_layers=3, n_heads=2)
    config = RunConfig(shape, training=TrainingConfig(steps=1, optimizer=optimizer, ema=ema))
    model = build_model(shape)
    optimizers = build_optimizers(model, config.training)
    summed_loss(model, Batch(IDS, IDS), Hardware("cpu", "float32", 1)).backward()
    for each in optimizers:
        each.step()
    states = [value for each in optimizers for state in each.state.values() for value in state.values() if value.ndim]
    weights = [*model.parameters()]
    kept = [*weights, *(weights if ema else []), *(weight.grad for weight in weights), *states]
    assert sum(tensor.nbytes for tensor in kept) == training_state_bytes(config)
