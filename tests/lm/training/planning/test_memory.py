"""Estimated memory and communication, against what training allocates and what a ring of ranks sends."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from lm.config.hardware import DistributionConfig
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.config.training import TrainingConfig
from lm.data.batch import Batch
from lm.hardware import Hardware
from lm.model.loss import estimate_loss_bytes
from lm.model.transformer import build_model
from lm.optim.optimizers import build_optimizers
from lm.training.objective import summed_loss
from lm.training.planning.memory import (
    estimate_memory,
    estimate_micro_batch_tokens,
    measure_activation_bytes,
    training_state_bytes,
)
from tests.fake_cuda import fake_cuda

SHAPE = ModelConfig(vocab_size=64, context_length=32, d_model=32, n_layers=3, n_heads=2)
GPU = Hardware("cuda", "bfloat16", 1)


def config_of(*, shard: bool = False, model: ModelConfig = SHAPE, **training) -> RunConfig:
    return RunConfig(
        model,
        training=TrainingConfig(
            steps=1, **({"batch_size": 12} | training if "batch_tokens" not in training else training)
        ),
        distribution=DistributionConfig(shard=shard),
    )


@pytest.mark.parametrize("ema", [0.0, 0.9])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_one_process_has_the_tensors_of_its_model_and_optimizers(optimizer, ema):
    config, model, hardware = config_of(optimizer=optimizer, ema=ema), build_model(SHAPE), Hardware("cpu", "float32", 1)
    optimizers = build_optimizers(model, config.training)
    ids = np.arange(64).reshape(2, 32)
    summed_loss(model, Batch(ids, ids), hardware).backward()
    for each in optimizers:
        each.step()
    weights = sum(weight.nbytes for weight in model.parameters())
    gradients = sum(weight.grad.nbytes for weight in model.parameters() if weight.grad is not None)
    moments = sum(
        value.nbytes
        for each in optimizers
        for state in each.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.numel() > 1
    )
    copies = 2 if ema else 1
    found = estimate_memory(config, processes=1, dtype="float32")
    assert (found.weights, found.gradients, found.optimizer) == (copies * weights, gradients, moments)
    assert found.activations == measure_activation_bytes(config, rows=12, dtype="float32")
    assert found.loss == estimate_loss_bytes(12 * 32, 64, 32, bytes_per_value=4)
    assert found.weights + found.gradients + found.optimizer == training_state_bytes(config)
    assert found.total == found.weights + found.gradients + found.optimizer + found.activations + found.loss


def test_a_rank_computes_its_part_of_the_batch_in_micro_batches():
    """Of 12 rows 3 ranks have 4; R-Drop passes each row twice."""
    for fields, processes, rows in (
        ({}, 3, 4), ({}, 5, 3), ({}, 100, 1), ({"micro_batch_size": 2}, 3, 2), ({"micro_batch_size": 9}, 3, 4),
        ({"batch_tokens": 6 * 32 + 31}, 2, 3), ({"r_drop": 1.0}, 3, 8),
    ):  # fmt: skip
        found = estimate_memory(config_of(**fields), processes=processes, dtype="bfloat16")
        assert found.activations == measure_activation_bytes(config_of(), rows=rows, dtype="bfloat16")
        assert found.loss == estimate_loss_bytes(rows * 32, 64, 32, bytes_per_value=2)


def fitting(free: Sequence[float], config: RunConfig, processes: int = 1) -> list[int]:
    """Return how many sequences fit into so many bytes; on a GPU that is faked."""
    rows = []
    for each in free:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.cuda, "mem_get_info", lambda *_, each=each: (int(each), int(each)))
            tokens = estimate_micro_batch_tokens(config, GPU, processes=processes)
        assert tokens is not None
        rows.append(tokens // config.model.context_length)
    return rows


def kept(config: RunConfig, rows: int, n_layers: int) -> int:
    """Return the bytes of the activations of some rows in some layers, on a GPU."""
    shape = dataclasses.replace(config, model=dataclasses.replace(config.model, n_layers=n_layers))
    return measure_activation_bytes(shape, rows=rows, dtype="bfloat16", device=torch.device("cuda", 0))


@pytest.mark.parametrize("fields", [{}, {"r_drop": 0.5, "gradient_checkpointing": True}], ids=str)
def test_as_many_sequences_are_in_a_pass_as_fit_into_free_memory(fields):
    """With the gradients of a layer, and a layer that is recomputed; 15% are for workspaces."""
    config, factor = config_of(**fields), 2 if fields else 1
    plain = dataclasses.replace(config, training=dataclasses.replace(config.training, gradient_checkpointing=False))
    with fake_cuda():
        first, second = (kept(config, rows, 3) for rows in (1, 2))
        each = second - first
        layer = kept(plain, 2, 3) - kept(plain, 1, 3) - kept(plain, 2, 2) + kept(plain, 1, 2)

        def needed(rows: int) -> float:
            loss = estimate_loss_bytes(rows * factor * 32, 64, 32, bytes_per_value=2, on_cpu=False)
            once = first - each + training_state_bytes(config)
            return (once + rows * (each + factor * layer) + loss) / 0.85

        assert fitting([0, needed(37) + 1, needed(38) - 1], config) == [1, 37, 37]
