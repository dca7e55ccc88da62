"""Memory-compressed attention against a loop in float64, a query and a compressed key at a time."""

import math

import pytest
import torch

from lm.config.model import ModelConfig
from lm.model.attention_inputs import AttentionInputs
from lm.model.mask import Mask
from lm.model.variants import memory_compressed
from lm.model.variants.memory_compressed import MemoryCompressedAttention
from tests.tolerances import assert_close


def layer_of(*, stride=3, is_causal=True, **fields):
    config = ModelConfig(d_model=16, n_heads=4, attention="compressed", attention_stride=stride, **fields)
    layer = MemoryCompressedAttention(config, layer=1, is_causal=is_causal).double().eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        parameter.data.normal_(std=0.4, generator=generator)
    return layer


@torch.no_grad()
def by_hand(layer, x, *, is_causal, length):
    """One row: keys and values of positions, a convolution over each stride of them, and a softmax for each query."""
    heads, kv_heads, head, stride = layer.heads, layer.kv_heads, layer.head_size, layer.stride
    width = kv_heads * head
    projected = x @ layer.input.weight.T + (0 if layer.input.bias is None else layer.input.bias)
    query, key, value = projected.split((heads * head, width, width), dim=-1)
    key, value = (torch.where(torch.arange(len(x))[:, None] < length, each, 0.0) for each in (key, value))

    def convolved(states, convolution):
        kernel = convolution.weight.view(width, stride, width)  # (out, place, in)
        n = length // stride if is_causal else math.ceil(length / stride)
        found = torch.zeros(n, width, dtype=torch.float64)
        for j in range(n):
            for place in range(stride):
                if j * stride + place < len(x):
                    found[j] += kernel[:, place] @ states[j * stride + place]
        return found if convolution.bias is None else found + convolution.bias

    keys, values = convolved(key, layer.key_convolution), convolved(value, layer.value_convolution)
    output = torch.zeros(len(x), heads * head, dtype=torch.float64)
    for i in range(len(x)):
        seen = [j for j in range(len(keys)) if not is_causal or j * stride + stride - 1 <= i]
        for h in range(heads):
            own, group = slice(h * head, (h + 1) * head), h * kv_heads // heads
            of_group = slice(group * head, (group + 1) * head)
            weights = [math.exp(float(query[i, own] @ keys[j, of_group]) / math.sqrt(head)) for j in seen]
            for j, weight in zip(seen, weights, strict=True):
                output[i, own] += weight / math.fsum(weights) * values[j, of_group]
    return output @ layer.output.weight.T + (0 if layer.output.bias is None else layer.output.bias)


@pytest.mark.parametrize("length", [1, 2, 3, 10, 12, 17])
@pytest.mark.parametrize("stride", [2, 3, 4])
@pytest.mark.parametrize("fields", [{}, {"n_kv_heads": 2, "bias": True}])
@pytest.mark.parametrize("is_causal", [True, False])
def test_equals_a_loop(length, stride, fields, is_causal):
    layer, x = layer_of(stride=stride, is_causal=is_causal, **fields), torch.randn(2, length, 16).double()
    found = layer(x, AttentionInputs(Mask(is_causal=is_causal)))
    for row in range(2):
        expected = by_hand(layer, x[row], is_causal=is_causal, length=length)
        assert_close(found[row], expected, model=layer)


def test_padding_of_an_encoder_counts_as_zeros():
    layer, x, lengths = layer_of(is_causal=False), torch.randn(2, 11, 16).double(), torch.tensor([11, 7])
    found = layer(x, AttentionInputs(Mask.key_padding(lengths)))
    for row, length in enumerate(lengths.tolist()):
        expected = by_hand(layer, x[row], is_causal=False, length=length)
        assert_close(found[row], expected, model=layer)


class NothingAdded:
    """Distances that are asked for, and add nothing."""

    asked = 0

    def compute_bias(self, query, distances, *, layer):
        assert (distances.shape[1:], layer) == ((query.shape[2], distances.shape[2]), 1)
        self.asked += 1
        return query.new_zeros(1, 1, 1, 1), None


@pytest.mark.parametrize("held", [1 << 30, 400])
def test_chunked_and_interleaved_are_the_same(held, monkeypatch):
    """What dropout and distances need, and what serves where there are none, forward and back."""
    monkeypatch.setattr(memory_compressed, "_MAX_SAVED_SCORES", held)
    layer, found, biases = layer_of(), [], NothingAdded()
    for distances in (None, biases):
        x = torch.randn(2, 31, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
        output = layer(x, AttentionInputs(Mask.causal(), distance_bias=distances))
        found.append((output, *torch.autograd.grad(output.square().sum(), [x, *layer.parameters()])))
    assert biases.asked
    for one, other in zip(*found, strict=True):
        assert_close(one, other, model=layer)
