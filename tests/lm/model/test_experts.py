"""Experts beside loops over positions and experts, what the gate's loss and capacity are, and what padding is not."""

import math

import pytest
import torch
import torch.nn.functional as F

from lm.config.model import ModelConfig
from lm.model.attention import AttentionInputs, Mask
from lm.model.experts import (
    MixtureOfExperts,
    Routing,
    load_balancing_loss,
)
from lm.model.layers import ACTIVATIONS, FeedForward
from tests.lm.model.hugging_face import randomise
from tests.tolerances import approx


def small(**fields: object) -> ModelConfig:
    return ModelConfig(**{"vocab_size": 61, "d_model": 16, "n_layers": 2, "n_heads": 2, "experts": 4, **fields})


def make_experts(**fields: object) -> MixtureOfExperts:
    torch.manual_seed(0)
    experts = MixtureOfExperts(small(**fields))
    randomise(experts)
    return experts.double()


def inputs(lengths: list[int] | None = None) -> AttentionInputs:
    return AttentionInputs(Mask(is_causal=True), lengths=None if lengths is None else torch.tensor(lengths))


def states(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def passed(expert: FeedForward, x: torch.Tensor, activation: str) -> torch.Tensor:
    hidden = ACTIVATIONS[activation](F.linear(x, expert.up.weight, expert.up.bias))
    return F.linear(hidden, expert.down.weight, expert.down.bias)


def by_loop(experts: MixtureOfExperts, x: torch.Tensor, lengths: list[int], *, k: int, activation: str) -> torch.Tensor:
    """Position by position; each expert counts how many it has taken until its capacity is reached."""
    taken, n = [0] * len(experts.experts), len(experts.experts)
    most = math.ceil(experts.capacity * k * sum(lengths) / n) if experts.capacity and experts.training else math.inf
    rows = []
    for row, length in zip(x, lengths, strict=True):
        outputs = []
        for place, position in enumerate(row):
            probabilities = torch.softmax(experts.gate.score.weight @ position, 0)
            chosen = sorted(range(n), key=lambda i, p=probabilities: -float(p[i].detach()))[:k]
            total = sum(probabilities[i] for i in chosen) if k > 1 else 1.0
            output = torch.zeros_like(position)
            for i in chosen if place < length else ():
                if taken[i] < most:
                    output = output + probabilities[i] / total * passed(experts.experts[i], position, activation)
                taken[i] += 1
            outputs.append(output)
        rows.append(torch.stack(outputs))
    return torch.stack(rows)


@pytest.mark.parametrize("capacity", [0.0, 0.7])
@pytest.mark.parametrize("lengths", [[9, 9, 9], [9, 2, 5]])
@pytest.mark.parametrize(("k", "activation", "bias"), [(1, "swiglu", False), (2, "gelu", True), (4, "relu", False)])
def test_outputs_and_gradients_are_those_of_a_loop_in_float64(k, activation, bias, lengths, capacity):
    fields = {"experts_per_token": k, "activation": activation, "bias": bias}
    experts = make_experts(expert_capacity=capacity, **fields)
    x, weights = states(3, 9), states(3, 9, seed=2)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    output = experts(ours, inputs(None if min(lengths) == 9 else lengths))
    expected = by_loop(experts, theirs, lengths, k=k, activation=activation)
    torch.testing.assert_close(output, expected)
    names = dict(experts.named_parameters())
    found = torch.autograd.grad((output * weights).sum(), [ours, *names.values()])
    wanted = torch.autograd.grad((expected * weights).sum(), [theirs, *names.values()], materialize_grads=True)
    for name, one, other in zip(["x", *names], found, wanted, strict=True):
        torch.testing.assert_close(one, other, msg=lambda message, name=name: f"{name}: {message}")


@pytest.mark.parametrize("k", [1, 2])
def test_the_balance_loss_is_the_papers_formula(k):
    """N Σ f P over the positions that are no padding, in a loop; Fedus et al. 2021, equations 4 to 6."""
    probabilities = states(9)[:, :4].softmax(-1)
    weights, experts = probabilities.topk(k)
    real = [True, True, False, True, True, True, False, True, True]
    routes = Routing(experts.masked_fill(~torch.tensor(real)[:, None], 4), weights, probabilities)
    positions = [place for place in range(9) if real[place]]
    expected = 0.0
    for expert in range(4):
        share = sum(int(expert in experts[place].tolist()) for place in positions) / (k * len(positions))
        mean = sum(float(probabilities[place, expert]) for place in positions) / len(positions)
        expected += 4 * share * mean
    assert float(load_balancing_loss(routes)) == approx(expected, terms=9)
