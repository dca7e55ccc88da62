"""What a run decides on a GPU, and the forward passes of its models there, without one: see `tests.fake_cuda`."""

import numpy as np
import pytest
import torch

from lm.config.hardware import HardwareConfig
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.config.training import TrainingConfig
from lm.data.batch import Batch
from lm.hardware import Hardware, configure_gpu
from lm.model.transformer import build_model
from lm.training.loop import stack_totals
from lm.training.objective import Objective, hidden_states_fn
from lm.training.planning import hardware_selection
from lm.training.planning.hardware_selection import select_training_hardware
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
    objective = Objective(built, GPU, TrainingConfig(steps=1, **training), states=hidden_states_fn(built))
    return objective(batch)[0]


@pytest.mark.parametrize("positions", POSITIONS)
def test_models_with_qk_norm_run_in_the_dtype_of_autocast(positions):
    """Autocast computes RMSNorm in float32 on a GPU, and not on a CPU."""
    with fake_cuda():
        for encoders in (0, 1):
            shape = ModelConfig(**SHAPE | {"n_layers": 1}, positions=positions, qk_norm=True, n_encoder_layers=encoders)
            assert loss_on_gpu(shape).device.type == "cuda"


@pytest.mark.parametrize(("has_bfloat16", "dtype"), [(True, "bfloat16"), (False, "float32")])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_gpu_that_has_bfloat16_trains_in_it_without_a_probe(monkeypatch, has_bfloat16, dtype, optimizer):
    monkeypatch.setattr(hardware_selection, "select_fastest", lambda *_: pytest.fail("was measured"))
    monkeypatch.setattr(hardware_selection, "_Probe", lambda *_: pytest.fail("was probed"))
    config = RunConfig(
        ModelConfig(**SHAPE), training=TrainingConfig(optimizer=optimizer), hardware=HardwareConfig(device="cuda")
    )
    with fake_cuda(has_bfloat16=has_bfloat16):
        found = select_training_hardware(config, Batch(IDS, IDS))
    of_muon = dtype if optimizer == "muon" else "float32"
    assert (found.device, found.dtype, found.optimizer_dtype) == ("cuda", dtype, of_muon)


@pytest.mark.parametrize(("dtype", "precision"), [("auto", "high"), ("bfloat16", "high"), ("float32", "highest")])
def test_tf32_is_for_what_is_left_in_float32_beside_bfloat16(dtype, precision):
    """What is asked for is what is computed: float32 is no TF32."""
    config = RunConfig(ModelConfig(**SHAPE), hardware=HardwareConfig(device="cuda", dtype=dtype))
    try:
        with fake_cuda():
            configure_gpu(select_training_hardware(config, Batch(IDS, IDS)))
            assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision("highest")


def test_the_norm_of_offloaded_gradients_is_read_with_the_loss():
    with fake_cuda():
        read = stack_totals(torch.zeros(2, device="cuda:0"), torch.zeros(()))
    assert (read.device.type, read.shape) == ("cuda", (3,))
