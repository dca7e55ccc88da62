"""What a run decides on a GPU, and the forward passes of its models there, without one: see `tests.fake_cuda`."""

import numpy as np
import pytest
import torch

from lm.config.model import ModelConfig
from lm.config.run_config import TrainingConfig
from lm.data import Batch
from lm.hardware import Hardware
from lm.model import build_model
from lm.training.objective import Objective, hidden_states_fn
from tests.fake_cuda import fake_cuda

SHAPE = {"vocab_size": 64, "context_length": 32, "d_model": 32, "n_layers": 2, "n_heads": 2}
IDS = np.arange(64).reshape(2, 32)
POSITIONS = ("rotary", "learned", "sinusoidal", "alibi", "relative", "t5")
GPU = Hardware("cuda", "bfloat16", 1)


def loss_on_gpu(model: ModelConfig, **training: float) -> torch.Tensor:
    """The summed loss of a batch, in a forward pass that notes what a backward pass would need."""
    batch = Batch(IDS, IDS)
    if model.n_encoder_layers:
        batch = Batch(IDS, IDS, source=IDS, source_lengths=np.array([32, 9]))
    built = build_model(model).to(GPU.torch_device)
    objective = Objective(built, GPU, TrainingConfig(steps=1, **training), states=[hidden_states_fn(built)])
    return objective(batch)[0]


@pytest.mark.parametrize("positions", POSITIONS)
def test_models_with_qk_norm_run_in_the_dtype_of_autocast(positions):
    """Autocast computes RMSNorm in float32 on a GPU, and not on a CPU."""
    with fake_cuda():
        for encoders in (0, 1):
            shape = ModelConfig(**SHAPE | {"n_layers": 1}, positions=positions, qk_norm=True, n_encoder_layers=encoders)
            assert loss_on_gpu(shape).device.type == "cuda"
