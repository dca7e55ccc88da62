"""The average of checkpoints is the mean of their weights."""

import pytest
import torch

from lm import checkpoint
from lm.config.run_config import HardwareConfig
from lm.errors import InputError
from lm.hardware import select_hardware
from lm.run_folder import list_checkpoints
from lm.training.derived_runs import average_checkpoints
from lm.training.loop import train
from tests.lm.training.runs import resume_run


def test_the_mean_of_the_latest(make_run, tmp_path):
    run = make_run(checkpoint_every=3, keep_checkpoints=0)
    list(train(run))
    chosen = list_checkpoints(run.folder)[-3:]
    assert [path.name for path in chosen] == ["step-9", "step-10", "step-12"]
    folder = average_checkpoints(chosen, tmp_path / "mean")
    weights = [checkpoint.load_weights(path) for path in chosen]
    loaded = checkpoint.load_model(tmp_path / "mean", select_hardware(HardwareConfig()))
    assert loaded.folder == folder
    for name, value in loaded.model.state_dict().items():
        expected = torch.stack([each[name] for each in weights]).double().mean(0).float()
        torch.testing.assert_close(value, expected)
    with pytest.raises(InputError, match="no optimizer state"):
        resume_run(tmp_path / "mean")
    with pytest.raises(InputError, match="holds a run already"):
        average_checkpoints(chosen, run.folder)
