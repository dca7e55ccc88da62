"""Linformer's attention against a loop in float64."""

import math

import pytest
import torch

from lm.config.model import ModelConfig
from lm.model.attention_inputs import AttentionInputs
from lm.model.mask import Mask
from lm.model.variants.linformer import LinformerAttention
from tests.tolerances import assert_close


def layer_of(**fields):
    config = ModelConfig(
        context_length=20, d_model=16, n_heads=4, n_encoder_layers=1, attention="linformer", attention_rank=5, **fields
    )
    layer = LinformerAttention(config).double().eval()
    for parameter in layer.parameters():
        parameter.data.normal_(std=0.4, generator=torch.Generator().manual_seed(parameter.numel()))
    return layer


@torch.no_grad()
def by_hand(layer, x):
    """One row without padding."""
    heads, kv_heads, head = layer.heads, layer.kv_heads, layer.head_size
    width = kv_heads * head
    query, key, value = (x @ layer.input.weight.T).split((heads * head, width, width), dim=-1)
    output = torch.zeros(len(x), heads * head, dtype=torch.float64)
    for i in range(len(x)):
        for h in range(heads):
            own, group = slice(h * head, (h + 1) * head), h * kv_heads // heads
            of_group = slice(group * head, (group + 1) * head)
            keys = [sum(row[j] * key[j, of_group] for j in range(len(x))) for row in layer.key_lengthwise]
            values = [sum(row[j] * value[j, of_group] for j in range(len(x))) for row in layer.value_lengthwise]
            weights = [math.exp(float(query[i, own] @ each) / math.sqrt(head)) for each in keys]
            for weight, each in zip(weights, values, strict=True):
                output[i, own] += weight / math.fsum(weights) * each
    return output @ layer.output.weight.T


@pytest.mark.parametrize("fields", [{}, {"n_kv_heads": 2}])
@pytest.mark.parametrize("length", [1, 7, 20])
def test_equals_a_loop(fields, length):
    layer, x = layer_of(**fields), torch.randn(2, length, 16).double()
    found = layer(x, AttentionInputs(Mask()))
    for row in range(2):
        assert_close(found[row], by_hand(layer, x[row]), model=layer)


def test_padding_counts_nothing():
    layer, x, lengths = layer_of(), torch.randn(2, 12, 16).double(), torch.tensor([12, 5])
    found = layer(x, AttentionInputs(Mask.key_padding(lengths)))
    for row, length in enumerate(lengths.tolist()):
        expected = by_hand(layer, x[row, :length])
        assert_close(found[row, :length], expected, model=layer)
