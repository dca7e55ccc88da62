"""Attention to compressed keys against loops in float64, a query and a key at a time."""

import math

import pytest
import torch
from torch import Tensor

from lm.config.model import ModelConfig
from lm.model.attention import AttentionInputs, Mask, MultiHeadAttention
from lm.model.compressed import LinformerAttention, MemoryCompressedAttention
from tests.tolerances import assert_close

SHAPE = {"context_length": 20, "d_model": 16, "n_heads": 4}


def filled(layer: MultiHeadAttention) -> MultiHeadAttention:
    generator = torch.Generator().manual_seed(0)
    for parameter in layer.double().eval().parameters():
        parameter.data.normal_(std=0.4, generator=generator)
    return layer


def memory_compressed(*, stride=3, is_causal=True, **fields) -> MultiHeadAttention:
    config = ModelConfig(**SHAPE, attention="compressed", attention_stride=stride, **fields)
    return filled(MemoryCompressedAttention(config, layer=1, is_causal=is_causal))


def convolved(layer: MultiHeadAttention, states: Tensor, name: str) -> Tensor:
    """A convolution over each stride of (length, width) positions; an incomplete one counts in an encoder alone."""
    convolution, stride, length = getattr(layer, f"{name}_convolution"), layer.stride, len(states)
    kernel = convolution.weight.view(states.shape[1], stride, states.shape[1])  # (out, place, in)
    starts = range(0, length - stride + 1 if layer.is_causal else length, stride)
    sums = [sum(kernel[:, i - at] @ states[i] for i in range(at, min(at + stride, length))) for at in starts]
    found = torch.stack(sums) if sums else states[:0]
    return found if convolution.bias is None else found + convolution.bias


def combined(layer: MultiHeadAttention, states: Tensor, name: str) -> Tensor:
    return torch.stack([row[: len(states)] @ states for row in getattr(layer, f"{name}_lengthwise")])


@torch.no_grad()
def by_hand(layer: MultiHeadAttention, x: Tensor, compress, *, length: int) -> Tensor:
    """One row, of which `length` positions are real: compressed keys and values, and a softmax for each query."""
    heads, head, group_size = layer.heads, layer.head_size, layer.heads // layer.kv_heads
    projected = x @ layer.input.weight.T + (0 if layer.input.bias is None else layer.input.bias)
    query, key, value = projected.split(layer.input.projected, dim=-1)
    keys, values = compress(layer, key[:length], "key"), compress(layer, value[:length], "value")
    output = torch.zeros(len(x), heads * head, dtype=torch.float64)
    for i in range(len(x)):
        sees_all = compress is combined or not layer.is_causal
        seen = [j for j in range(len(keys)) if sees_all or (j + 1) * layer.stride <= i + 1]
        for h in range(heads):
            own, group = slice(h * head, (h + 1) * head), slice(h // group_size * head, (h // group_size + 1) * head)
            weights = [math.exp(float(query[i, own] @ keys[j, group]) / math.sqrt(head)) for j in seen]
            for j, weight in zip(seen, weights, strict=True):
                output[i, own] += weight / math.fsum(weights) * values[j, group]
    return output @ layer.output.weight.T + (0 if layer.output.bias is None else layer.output.bias)


@pytest.mark.parametrize("length", [1, 3, 10, 17])
@pytest.mark.parametrize("stride", [2, 3, 4])
@pytest.mark.parametrize("fields", [{}, {"n_kv_heads": 2, "bias": True}])
@pytest.mark.parametrize("is_causal", [True, False])
def test_memory_compressed_attention_equals_a_loop(length, stride, fields, is_causal):
    layer = memory_compressed(stride=stride, is_causal=is_causal, **fields)
    x, inputs = torch.randn(1, length, 16).double(), AttentionInputs(Mask(is_causal=is_causal))
    assert_close(layer(x, inputs)[0], by_hand(layer, x[0], convolved, length=length), model=layer)


def test_padding_of_an_encoder_counts_as_zeros():
    layer, x, lengths = memory_compressed(is_causal=False), torch.randn(2, 11, 16).double(), torch.tensor([11, 7])
    found = layer(x, AttentionInputs(Mask(key_lengths=lengths)))
    for row, length in enumerate(lengths.tolist()):
        assert_close(found[row], by_hand(layer, x[row], convolved, length=length), model=layer)


def test_interleaved_queries_attend_as_with_a_mask():
    layer, inputs, found = memory_compressed(), AttentionInputs(Mask(is_causal=True)), []
    for attend in (MemoryCompressedAttention.attend_heads, MultiHeadAttention.attend_heads):
        x = torch.randn(2, 31, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
        output = attend(layer, *layer.project_qkv(x, inputs), inputs)
        found.append((output, *torch.autograd.grad(output.square().sum(), [x, layer.key_convolution.weight])))
    for one, other in zip(*found, strict=True):
        assert_close(one, other, model=layer)


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_linformer_equals_a_loop(kv_heads):
    config = ModelConfig(**SHAPE, n_kv_heads=kv_heads, n_encoder_layers=1, attention="linformer", attention_rank=5)
    layer, x, lengths = filled(LinformerAttention(config)), torch.randn(2, 12, 16).double(), torch.tensor([12, 5])
    found = layer(x, AttentionInputs(Mask(key_lengths=lengths)))
    for row, length in enumerate(lengths.tolist()):
        assert_close(found[row], by_hand(layer, x[row], combined, length=length), model=layer)
