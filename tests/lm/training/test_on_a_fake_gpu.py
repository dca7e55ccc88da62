"""What a run decides on a GPU, and the forward passes of its models there, without one: see `tests.fake_cuda`."""

import numpy as np
import pytest
import torch

from lm.config.hardware import HardwareConfig
from lm.config.model import ModelConfig
from lm.config.presets import build_run_config
from lm.config.run_config import RunConfig
from lm.config.training import TrainingConfig
from lm.data.batch import Batch
from lm.hardware import Hardware, set_matmul_precision
from lm.model.transformer import build_model
from lm.training.loop import stack_totals
from lm.training.objective import Objective, hidden_states_fn
from lm.training.planning import hardware_selection
from lm.training.planning.hardware_selection import select_training_hardware
from lm.training.planning.memory import estimate_micro_batch_tokens, measure_activation_bytes
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
            set_matmul_precision(select_training_hardware(config, Batch(IDS, IDS)))
            assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision("highest")


def test_the_norm_of_offloaded_gradients_is_read_with_the_loss():
    with fake_cuda():
        read = stack_totals(torch.zeros(2, device="cuda:0"), torch.zeros(()))
    assert (read.device.type, read.shape) == ("cuda", (3,))


@pytest.mark.parametrize(
    ("dropout", "least", "most"), [(0.0, 353e3, 355e3), pytest.param(0.1, 372e3, 374e3, marks=pytest.mark.slow)]
)
def test_bytes_a_token_that_gpt2_keeps_for_the_backward_pass(dropout, least, most):
    """By hand without dropout 350 kB: in each of 12 layers 38 bytes for each of 768 numbers.

    These are 8 for the inputs of two norms, and in bfloat16 4 for their outputs, 6 for queries, keys and values, 4 for
    what attention gives, and 16 for what goes into the activation function and comes out of it. The rest is the last
    norm's, and logarithms of sums; dropout adds its masks.
    """
    config, sizes = build_run_config("gpt2", {"model": {"dropout": dropout}}), []
    with fake_cuda():
        for rows in (1, 2):
            sizes.append(measure_activation_bytes(config, rows=rows, dtype="bfloat16", device=torch.device("cuda", 0)))
    assert least < (sizes[1] - sizes[0]) / 1024 < most


def fitting(free: float, hardware: Hardware = GPU, processes: int = 1, **training: object) -> int | None:
    """Sequences of a small model that fit into so many bytes."""
    config = RunConfig(ModelConfig(**SHAPE), training=TrainingConfig(steps=1, **training))
    with fake_cuda(free=int(free)):
        tokens = estimate_micro_batch_tokens(config, hardware, processes=processes)
    return None if tokens is None else tokens // SHAPE["context_length"]


@pytest.mark.medium
def test_as_many_sequences_are_in_a_pass_as_fit_into_free_memory():
    rows = [fitting(free) for free in (0, 1e8, 2e8, 3e8)]
    assert rows[0] == 1  # there is no smaller pass
    assert rows[3] - rows[2] == pytest.approx(rows[2] - rows[1], abs=1)
    assert rows[1] < rows[2]
    each = 0.85e8 / (rows[3] - rows[2])
    config = RunConfig(ModelConfig(**SHAPE))
    with fake_cuda():
        found = [
            measure_activation_bytes(config, rows=n, dtype="bfloat16", device=torch.device("cuda", 0)) for n in (1, 2)
        ]
    assert (
        found[1] - found[0] < each < 3 * (found[1] - found[0])
    )  # and the gradients of a layer, and what the loss holds


@pytest.mark.medium
def test_what_lowers_memory_lets_more_fit():
    plain = fitting(2e8)
    assert fitting(2e8, r_drop=0.5) < 0.6 * plain
    assert fitting(2e8, Hardware("cuda", "float32", 1)) < plain
    assert fitting(2e8, Hardware("cpu", "float32", 1)) is None


def test_the_batch_of_gpt2_is_parted_on_a_gpu_of_80_gigabytes():
    """480 rows of 1,024 tokens keep 183 GB: at least three passes."""
    config = build_run_config("gpt2")
    with fake_cuda(free=79 * 10**9):
        tokens = estimate_micro_batch_tokens(config, GPU)
    assert 3 <= 480 * 1024 / tokens < 4
