"""Attention with relative positions is what a loop over queries and keys in float64 gives, and its gradients too."""

import math

import pytest
import torch
from torch import Tensor

from lm.config.model import ModelConfig
from lm.model import Stack
from lm.model.attention import AttentionInputs, Mask, MultiHeadAttention, capture_attention_weights
from tests.tolerances import assert_close

SHAPES = {
    "few keys": {"length": 7, "max_distance": 3},
    "many keys": {"length": 11, "max_distance": 3},
    "no key as far": {"length": 4, "max_distance": 9},
    "grouped heads": {"length": 9, "max_distance": 2, "n_kv_heads": 2},
    "one key head, normalised": {"length": 6, "max_distance": 1, "n_kv_heads": 1, "qk_norm": True},
}
LENGTHS = torch.tensor([5, 2])


def make_stack(*, is_causal: bool, max_distance: int, **fields: object) -> Stack:
    config = ModelConfig(d_model=24, n_heads=4, positions="relative", max_distance=max_distance, **fields)
    stack = Stack(config, 2, is_causal=is_causal)
    generator = torch.Generator().manual_seed(7)
    for parameter in stack.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.25
    return stack


def by_hand(stack: Stack, x: Tensor, *, layer: int, is_causal: bool, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weights and output of a layer, pair by pair: equations 3 and 4 of Shaw et al. 2018."""
    attention, head = stack.blocks[layer].attention, stack.blocks[layer].attention.head_size
    assert isinstance(attention, MultiHeadAttention)
    tables, clip = stack.positions, stack.positions.before
    batch, length, _ = x.shape
    query, key, value = (
        part.view(batch, length, -1, head)
        for part in (x @ attention.input.weight.T).split(attention.input.projected, dim=-1)
    )
    if attention.query_norm is not None:
        query = query / (query.square().mean(-1, keepdim=True) + 1e-5).sqrt() * attention.query_norm.weight
        key = key / (key.square().mean(-1, keepdim=True) + 1e-5).sqrt() * attention.key_norm.weight
    weights, rows = x.new_zeros(batch, attention.heads, length, length), []
    for row in range(batch):
        for i in range(length):
            seen = [j for j in range(length) if (lengths is None or j < lengths[row]) and (not is_causal or j <= i)]
            for h in range(attention.heads):
                group = h // (attention.heads // attention.kv_heads)
                apart = [max(-clip, min(clip, j - i)) + clip for j in seen]
                pairs = list(zip(seen, apart, strict=True))
                keys = [key[row, j, group] + tables.keys[layer, group, d] for j, d in pairs]
                values = [value[row, j, group] + tables.values[layer, group, d] for j, d in pairs]
                share = torch.stack([query[row, i, h] @ k / math.sqrt(head) for k in keys]).softmax(0)
                weights[row, h, i, seen] = share.detach()
                rows.append((share[:, None] * torch.stack(values)).sum(0))
    return weights, torch.stack(rows).view(batch, length, -1) @ attention.output.weight.T


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_it_is_the_loop_of_the_paper_forward_and_backward(shape, is_causal, lengths):
    fields = dict(SHAPES[shape])
    x = torch.randn(2, fields.pop("length"), 24, generator=torch.Generator().manual_seed(1))
    wanted = torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
    ours, exact = (make_stack(is_causal=is_causal, **fields) for _ in range(2))
    exact = exact.double()
    attention_inputs = ours.positions(
        AttentionInputs(Mask(is_causal=is_causal, key_lengths=lengths)), x.shape[1], x.device
    )
    attention, inputs = ours.blocks[1].attention, (x.clone().requires_grad_(), x.double().requires_grad_())
    with capture_attention_weights([attention]) as weights:
        output = attention(inputs[0], attention_inputs)
    expected_weights, expected = by_hand(exact, inputs[1], layer=1, is_causal=is_causal, lengths=lengths)
    assert_close(output, expected, model=attention)
    assert_close(weights[0], expected_weights, model=attention)
    (output * wanted).sum().backward()
    (expected * wanted).sum().backward()
    assert_close(inputs[0].grad, inputs[1].grad, model=attention)
    for (name, one), other in zip(ours.named_parameters(), exact.parameters(), strict=True):
        if other.grad is not None:
            assert_close(one.grad, other.grad, model=attention, msg=name)
    assert exact.positions.keys.grad[1].any()
    assert not ours.positions.keys.grad[0].any()


def test_two_kinds_of_distance_add_their_embeddings():
    """The same embeddings twice are twice the embeddings."""
    stack, x = make_stack(is_causal=False, max_distance=3), torch.randn(2, 7, 24)
    distances = AttentionInputs(Mask()).compute_distances(7, x.device)
    both = stack.positions.add_to(stack.positions.add_to(AttentionInputs(Mask()), distances), distances)
    found = stack.blocks[1].attention(x, both)
    for table in stack.positions.parameters():
        table.data *= 2
    once = stack.positions.add_to(AttentionInputs(Mask()), distances)
    assert_close(found, stack.blocks[1].attention(x, once), model=stack)
