"""Attention agrees with a loop in float64 for every mask, whichever kernel serves it."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from lm.model import attention
from lm.model.attention import Mask, attend
from lm.model.layers import blockwise_causal_attention
from tests.tolerances import assert_close

BATCH, HEADS, HEAD = 3, 4, 8


def naive(query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
    """One query at a time, in float64, straight from the definition."""
    query, key, value = query.detach(), key.detach(), value.detach()
    batch, heads, n_queries, head = query.shape
    kv_heads, n_keys = key.shape[1:3]
    output = torch.zeros(batch, heads, n_queries, head, dtype=torch.float64)
    for row, h, i in itertools.product(range(batch), range(heads), range(n_queries)):
        position, group = n_keys - n_queries + i, h // (heads // kv_heads)
        seen = [
            j
            for j in range(n_keys)
            if not (mask.is_causal and j > position)
            and not (mask.visible is not None and not mask.visible[0, 0, i, j])
            and not (mask.key_lengths is not None and j >= mask.key_lengths[row])
        ]
        scores = key[row, group, seen].double() @ query[row, h, i].double() / math.sqrt(head)
        if mask.bias is not None:
            scores += mask.bias[row % len(mask.bias), h, i, seen].double()
        output[row, h, i] = scores.exp() / scores.exp().sum() @ value[row, group, seen].double()
    return output


def masks(n_queries: int, n_keys: int) -> dict[str, Mask]:
    bias, visible = torch.randn(1, HEADS, n_queries, n_keys), torch.rand(1, 1, n_queries, n_keys) > 0.3
    visible[..., 0] = True
    lengths = torch.tensor([n_keys, 2, 0])
    return {
        "everything": Mask(),
        "causal": Mask(is_causal=True),
        "visible": Mask(visible=visible),
        "keys": Mask(key_lengths=lengths),
        "causal keys": Mask(is_causal=True, key_lengths=lengths),
        "bias": Mask(bias=bias),
        "causal bias": Mask(is_causal=True, bias=bias),
        "all": Mask(is_causal=True, key_lengths=lengths, visible=visible, bias=bias),
    }


def tensors(n_queries: int, n_keys: int, kv_heads: int = HEADS) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(n_queries + 10 * n_keys + 100 * kv_heads)
    shapes = [(BATCH, HEADS, n_queries, HEAD), (BATCH, kv_heads, n_keys, HEAD), (BATCH, kv_heads, n_keys, HEAD)]
    query, key, value = (torch.randn(shape, requires_grad=True) for shape in shapes)
    return query, key, value


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("name", masks(1, 1))
def test_agrees_with_the_definition(name, kv_heads, monkeypatch):
    for n_queries, n_keys in ((7, 7), (2, 2), (1, 7), (3, 7), (1, 1)):
        mask = masks(n_queries, n_keys)[name]
        expected = naive(*tensors(n_queries, n_keys, kv_heads), mask)
        for uses_matmuls in (False, True):
            monkeypatch.setattr(attention, "matmuls_are_faster", lambda *_, answer=uses_matmuls: answer)
            query, key, value = tensors(n_queries, n_keys, kv_heads)
            attended = attend(query, key, value, mask=mask)
            assert_close(attended, expected, terms=HEAD, depth=2)
            attended.square().sum().backward()
            assert all(tensor.grad.isfinite().all() for tensor in (query, key, value))


def test_dropout_keeps_the_expectation_and_depends_on_the_seed():
    inputs = [tensor.detach().repeat(1000, 1, 1, 1) for tensor in tensors(6, 6)]

    def drawn(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return attend(*inputs, mask=Mask(is_causal=True), dropout=0.3)

    plain = attend(*inputs, mask=Mask(is_causal=True)).unflatten(0, (1000, -1))[0]
    draws = drawn(1).unflatten(0, (1000, -1))
    spread = draws.std(0) / math.sqrt(len(draws))
    assert ((draws.mean(0) - plain).abs() <= 6 * spread + 1e-6).all()
    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))


@pytest.mark.parametrize("length", [1, 127, 128, 129, 500])
@pytest.mark.parametrize("kv_heads", [4, 1])
def test_blockwise_attention_agrees_with_the_definition(length, kv_heads):
    query, key, value = (tensor.detach() for tensor in tensors(length, length, kv_heads))
    expected = attend(query.double(), key.double(), value.double(), mask=Mask(is_causal=True))
    assert_close(blockwise_causal_attention(query, key, value), expected, terms=max(16, length), depth=2)
