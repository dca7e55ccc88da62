"""Experts beside loops over positions and experts, what the gate's loss and capacity are, and what padding is not."""

import math

import pytest
import torch
import torch.nn.functional as F

from lm.config.model import ModelConfig
from lm.model.attention_inputs import AttentionInputs
from lm.model.layers import ACTIVATIONS, FeedForward
from lm.model.mask import Mask
from lm.model.transformer import build_model
from lm.model.variants.experts import (
    MixtureOfExperts,
    Router,
    Routing,
    capture_routing,
    count_expert_tokens,
    expert_fractions,
    load_balancing_loss,
)
from tests.lm.model.hugging_face import randomise
from tests.tolerances import approx, assert_close


def small(**fields: object) -> ModelConfig:
    return ModelConfig(**{"vocab_size": 61, "d_model": 16, "n_layers": 2, "n_heads": 2, "experts": 4, **fields})


def make_experts(**fields: object) -> MixtureOfExperts:
    torch.manual_seed(0)
    experts = MixtureOfExperts(small(**fields))
    randomise(experts)
    return experts.double()


def inputs(lengths: list[int] | None = None) -> AttentionInputs:
    return AttentionInputs(Mask.causal(), lengths=None if lengths is None else torch.tensor(lengths))


def states(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ids(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 61, shape, generator=torch.Generator().manual_seed(seed))


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


@pytest.mark.parametrize("k", [1, 2, 4])
def test_equal_experts_are_one_dense_layer(k):
    """Whose output a gate with one choice multiplies by the probability of that."""
    experts = make_experts(experts_per_token=k).eval()
    for expert in experts.experts:
        expert.load_state_dict(experts.experts[0].state_dict())
    x = states(2, 7)
    weight = experts.gate(x.flatten(0, 1)).weights.sum(-1).view(2, 7, 1)
    torch.testing.assert_close(experts(x, inputs()), weight * experts.experts[0](x))
    if k > 1:
        torch.testing.assert_close(weight, torch.ones_like(weight))


def test_an_expert_without_positions_has_a_gradient_of_zero():
    experts = make_experts()
    experts(states(1, 1), inputs()).sum().backward()
    gradients = [expert.up.weight.grad for expert in experts.experts]
    assert sorted(bool(gradient.any()) for gradient in gradients) == [False, False, False, True]


def test_the_first_positions_fill_an_expert_and_later_ones_go_past():
    """20 positions of one kind and 4 experts: each takes 5 with a capacity of 1; outside training there is no limit."""
    experts = make_experts(expert_capacity=1.0)
    x = states(1, 1).expand(2, 10, 16)
    output = experts(x, inputs())
    assert output.any(-1).flatten().tolist() == [True] * 5 + [False] * 15
    assert experts.eval()(x, inputs()).any(-1).all()


def test_padding_is_not_routed():
    experts = make_experts(expert_capacity=1.0)
    x = states(1, 1).expand(2, 10, 16)
    output = experts(x, inputs([2, 10]))
    assert output.any(-1).flatten().tolist() == [True] * 2 + [False] * 8 + [True] + [False] * 9


def test_noise_is_drawn_in_training_alone_and_has_the_size_of_the_papers():
    """Shazeer et al. 2017, equation 4: standard normal numbers times softplus of a linear layer."""
    gate = make_experts(gate_noise=0.5).gate
    x = states(5)
    torch.manual_seed(3)
    noisy = gate(x).probabilities
    torch.manual_seed(3)
    drawn = torch.randn(5, 4, dtype=torch.float64)
    scores = x @ gate.score.weight.T + 0.5 * drawn * torch.log1p(torch.exp(x @ gate.noise.weight.T))
    torch.testing.assert_close(noisy, scores.softmax(-1))
    torch.testing.assert_close(gate.eval()(x).probabilities, (x @ gate.score.weight.T).softmax(-1))


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


def test_an_even_gate_has_a_balance_loss_of_one_and_a_constant_one_of_as_many_as_there_are_experts():
    even = torch.full((8, 4), 0.25)
    assert load_balancing_loss(Routing(torch.arange(8)[:, None] % 4, even[:, :1], even)) == 1.0
    constant = torch.eye(4)[[2] * 8]
    assert load_balancing_loss(Routing(torch.full((8, 1), 2), constant[:, 2:3], constant)) == 4.0


@pytest.mark.parametrize("fields", [{}, {"n_encoder_layers": 4}, {"expert_every": 2}])
def test_routes_and_counts_are_of_each_layer_with_experts(fields):
    model = build_model(small(n_layers=4, experts_per_token=2, **fields)).eval()
    inputs = (ids(3, 5), ids(3, 7)) if "n_encoder_layers" in fields else (ids(3, 7),)
    with capture_routing(model) as routes, count_expert_tokens(model) as counts:
        model(*inputs)
        model(*inputs)
    stacks = ["encoder", "decoder"] if "n_encoder_layers" in fields else ["decoder"]
    layers = [1, 3] if "expert_every" in fields else [0, 1, 2, 3]
    assert set(counts) == {f"{stack}.blocks.{layer}.feed_forward" for stack in stacks for layer in layers}
    assert len(routes) == 2 * len(counts)
    for name, each in counts.items():
        assert each.sum() == 2 * 2 * 3 * (5 if name.startswith("encoder") else 7)
        assert sum(expert_fractions(counts)[name]) == pytest.approx(1.0)
    assert not any(module._forward_hooks for module in model.modules() if isinstance(module, Router))


@pytest.mark.parametrize("k", [1, 2])
def test_batched_padded_and_cached_equal_single(k):
    model = build_model(small(experts_per_token=k, expert_capacity=1.0)).eval()
    randomise(model)
    tokens = ids(3, 9)
    together = model(tokens)
    assert_close(torch.cat([model(row[None]) for row in tokens]), together, model=model)
    padded = model.hidden(F.pad(tokens, (0, 4)), target_lengths=torch.tensor([9, 9, 9]))
    assert_close(model.logits(padded[:, :9]), together, model=model)
    cache = model.new_cache()
    parts = [model(part, cache=cache) for part in tokens.split(2, dim=1)]
    assert_close(torch.cat(parts, dim=1), together, model=model)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("lengths", [None, [6, 3]])
def test_under_autocast_outputs_have_its_type_and_the_gate_is_exact(training, lengths):
    experts = make_experts(experts_per_token=2).float().train(training)
    x = states(2, 6).float()
    plain = experts(x, inputs(lengths))
    with torch.autocast("cpu", dtype=torch.bfloat16), capture_routing(experts) as routes:
        output = experts(x, inputs(lengths))
    assert output.dtype is torch.bfloat16
    assert routes[0].probabilities.dtype is torch.float32
    assert_close(output, plain, depth=10)
