"""Which weights are trained by what, and what that keeps of each."""

import pytest
import torch

from lm.config.model import ModelConfig
from lm.config.run_config import TrainingConfig
from lm.model import build_model
from lm.training.optimizers import (
    build_optimizers,
    hidden_matrices,
)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_vectors_are_not_decayed_and_all_else_at_one_rate(make_run, optimizer):
    run = make_run(model={"bias": True, "norm": "layernorm", "positions": "learned"})
    optimizers = build_optimizers(run.model, TrainingConfig(steps=1, weight_decay=0.3, optimizer=optimizer))
    groups = [group for each in optimizers for group in each.param_groups]
    rates = [group["weight_decay"] * group.get("rate_fraction", 1.0) for group in groups]
    decay = {id(p): rate for group, rate in zip(groups, rates, strict=True) for p in group["params"]}
    for name, parameter in run.model.named_parameters():
        assert decay[id(parameter)] == (0.0 if name.endswith("bias") or "norm" in name else 0.3)


def test_queries_keys_values_and_gates_are_matrices_of_their_own():
    config = ModelConfig(vocab_size=50, d_model=32, n_layers=2, n_encoder_layers=1, n_heads=4, n_kv_heads=2, d_ff=48)
    model = build_model(config)
    matrices = hidden_matrices(model)
    names = {name: matrices[p] for name, p in model.named_parameters() if p in matrices}
    assert list(names["decoder.blocks.1.cross_attention.input.weight"]) == [32, 16, 16]
    assert list(names["encoder.blocks.0.feed_forward.up.weight"]) == [48, 48]
    assert list(names["decoder.blocks.0.feed_forward.down.weight"]) == [32]
    assert len(names) == 4 + 2 * 6
    assert not any("embedding" in name for name in names)


@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_each_matrix_of_each_expert_is_orthogonalised_alone(activation):
    """Its update has the root mean square of 0.2 that a dense matrix's has, whatever the other experts' gradients."""
    shape = {"vocab_size": 50, "d_model": 32, "n_layers": 1, "n_heads": 4, "d_ff": 48, "activation": activation}
    model = build_model(ModelConfig(**shape, experts=3))
    matrices = hidden_matrices(model)
    names = {name: matrices[p] for name, p in model.named_parameters() if ".experts." in name and p in matrices}
    gate = 2 if activation == "swiglu" else 1
    assert len(names) == 3 * 2
    config = TrainingConfig(steps=1, optimizer="muon", weight_decay=0.0, learning_rate=1.0)
    (_, muon) = build_optimizers(model, config, dtype=torch.float32)
    torch.manual_seed(0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for number, p in enumerate(model.parameters()):
        p.grad = torch.randn_like(p) * 10.0 ** -(number % 4)
    muon.step()
    for name, p in model.named_parameters():
        if name in names:
            assert list(names[name]) == ([48] * gate if "up" in name else [32])
            for update in (p.detach() - before[name]).split(names[name]):
                values = torch.linalg.svdvals(update) / (0.2 * 48**0.5)
                assert 0.5 < values.min() < values.max() < 1.4
