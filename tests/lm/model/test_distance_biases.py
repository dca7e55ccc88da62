"""Biases by distance: those of published models, wherever queries and keys stand."""

import math

import pytest
import torch
from transformers import T5Config
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from lm.config.model import ModelConfig
from lm.model import Stack
from lm.model.attention import AttentionInputs, Mask
from lm.model.positions import ALiBi
from tests.tolerances import assert_close

CPU = torch.device("cpu")


@pytest.mark.parametrize("heads", [1, 2, 6, 8, 12])
def test_linear_biases_attend_as_those_of_bloom(heads):
    """Hugging Face counts from the first key, we from the query: the softmax is the same."""
    linear = ALiBi(ModelConfig(d_model=4 * heads, n_heads=heads, positions="alibi"))
    mask = linear(AttentionInputs(Mask(is_causal=True), start=6), 3, CPU).mask
    assert mask.is_causal
    theirs = build_alibi_tensor(torch.ones(1, 9), heads, torch.float32).view(heads, 1, 9)
    scores, seen = torch.randn(heads, 3, 9), torch.ones(9, 9).tril()[6:] > 0
    ours, expected = ((scores + each).masked_fill(~seen, -torch.inf).softmax(-1) for each in (mask.bias[0], theirs))
    assert_close(ours, expected, terms=9)


def their_attention(config: ModelConfig, *, is_causal: bool) -> T5Attention:
    """T5's attention of Hugging Face, of the same shape."""
    shape = T5Config(
        d_model=config.d_model, d_kv=config.d_head, num_heads=config.n_heads, is_decoder=is_causal,
        relative_attention_max_distance=config.max_distance, dropout_rate=0.0,
    )  # fmt: skip
    return T5Attention(shape, has_relative_attention_bias=True, layer_idx=0).eval()


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_attention_with_bucketed_biases_is_that_of_hugging_face(is_causal, dropout):
    """They do not scale scores: their queries have the factor. Gradients are compared too, by either kernel."""
    config = ModelConfig(d_model=24, n_heads=3, positions="t5", attention_dropout=dropout)
    theirs, stack = their_attention(config, is_causal=is_causal), Stack(config, 1, is_causal=is_causal)
    attention, table = stack.blocks[0].attention, theirs.relative_attention_bias.weight
    stack.positions.biases.data = table.data.clone()
    torch.nn.init.normal_(attention.input.weight, std=0.3)
    attention.output.weight.data = theirs.o.weight.data
    query, key, value = attention.input.weight.data.split(24)
    theirs.q.weight.data, theirs.k.weight.data, theirs.v.weight.data = query / math.sqrt(8), key, value
    x, seen = torch.randn(2, 21, 24), torch.ones(21, 21).tril() > 0
    hidden = torch.zeros(21, 21).masked_fill(~seen, -torch.inf) if is_causal else torch.zeros(21, 21)
    expected = theirs(x, mask=hidden[None, None])[0]
    attention.eval()
    found = attention(x, stack.positions(AttentionInputs(Mask(is_causal=is_causal)), 21, CPU))
    assert_close(found, expected, model=attention)
    found.square().sum().backward()
    expected.square().sum().backward()
    assert_close(stack.positions.biases.grad, table.grad, model=attention)
