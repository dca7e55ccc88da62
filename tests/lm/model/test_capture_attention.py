import math

import pytest
import torch

from lm.config.model import ModelConfig
from lm.model.attention import capture_attention_weights
from lm.model.transformer import build_model
from tests.tolerances import assert_close

SHAPE = {"vocab_size": 50, "context_length": 16, "d_model": 32, "n_layers": 2, "n_heads": 4, "init_std": 0.3}

VARIANTS = {
    "rotary": {},
    "grouped heads": {"n_kv_heads": 2},
    "one key head": {"n_kv_heads": 1, "qk_norm": True},
    "normalised": {"qk_norm": True},
    "of 2017": {"positions": "sinusoidal", "norm": "layernorm", "norm_position": "post", "bias": True},
}


def model_of(**fields):
    return build_model(ModelConfig(**{**SHAPE, **fields}), seed=1).double().eval().requires_grad_(False)


def seen_by(attention, run):
    """The input, scope and output of an attention layer while `run` is called."""
    calls = []
    hook = attention.register_forward_hook(lambda _, inputs, output: calls.append((*inputs, output)))
    run()
    hook.remove()
    return calls[0]


def by_hand(attention, x, memory, *, causal, lengths, rotary_base):
    """The weights of one row, key by key in float64, from the layer's own matrix."""
    heads, kv_heads, size = attention.heads, attention.kv_heads, attention.head_size
    weight = attention.input.weight.split((heads * size, kv_heads * size, kv_heads * size))
    bias = attention.input.bias
    offsets = (0, 0) if bias is None else bias.split((heads * size, kv_heads * size, kv_heads * size))[:2]
    query = (x @ weight[0].T + offsets[0]).view(len(x), heads, size)
    key = (memory @ weight[1].T + offsets[1]).view(len(memory), kv_heads, size)
    if attention.query_norm is not None:
        query = query / (query.square().mean(-1, keepdim=True) + 1e-5).sqrt() * attention.query_norm.weight
        key = key / (key.square().mean(-1, keepdim=True) + 1e-5).sqrt() * attention.key_norm.weight
    if rotary_base:
        query, key = turned(query, rotary_base), turned(key, rotary_base)
    weights = torch.zeros(heads, len(x), len(memory), dtype=torch.float64)
    for head in range(heads):
        for i in range(len(x)):
            allowed = [j for j in range(lengths) if not causal or j <= i]
            scores = [float(query[i, head] @ key[j, head * kv_heads // heads]) / math.sqrt(size) for j in allowed]
            total = math.fsum(map(math.exp, scores))
            for j, score in zip(allowed, scores, strict=True):
                weights[head, i, j] = math.exp(score) / total
    return weights


def turned(x, base):
    """Rotary positions as multiplication by complex numbers."""
    half = x.shape[-1] // 2
    angles = torch.arange(len(x))[:, None, None] * base ** (-torch.arange(half, dtype=torch.float64) / half)
    numbers = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((numbers.real, numbers.imag), dim=-1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_cross_and_encoder_attention_see_only_real_positions(variant):
    model = model_of(n_encoder_layers=1, **VARIANTS[variant])
    generator = torch.Generator().manual_seed(0)
    source, target = torch.randint(50, (2, 7), generator=generator), torch.randint(50, (2, 5), generator=generator)
    lengths = torch.tensor([7, 4])
    cross = model.decoder.attention_layers(cross=True)
    encoder = model.encoder.blocks[0].attention
    with capture_attention_weights([encoder, *cross]) as weights:
        model(source, target, lengths=lengths)
    assert [tuple(layer.shape) for layer in weights] == [(2, 4, 7, 7), (2, 4, 5, 7), (2, 4, 5, 7)]
    base = model.config.rope_base if model.config.positions == "rotary" else None
    for attention, captured_weights in zip((encoder, *cross), weights, strict=True):
        x, inputs, _ = seen_by(attention, lambda: model(source, target, lengths=lengths))
        memory = inputs.encoder_output
        for row in range(2):
            keys, turn = (x, base) if memory is None else (memory, None)
            expected = by_hand(attention, x[row], keys[row], causal=False, lengths=int(lengths[row]), rotary_base=turn)
            assert_close(captured_weights[row], expected, model=model)
        assert (captured_weights[1, ..., 4:] == 0).all()


def test_capturing_changes_nothing_and_leaves_nothing_behind():
    model = model_of().float()
    tokens = torch.arange(8)[None]
    attention = model.decoder.blocks[0].attention
    before = model(tokens)
    with capture_attention_weights([attention]) as weights:
        assert torch.equal(model(tokens), before)
    model(tokens)
    assert len(weights) == 1
    with pytest.raises(ZeroDivisionError), capture_attention_weights([attention]):
        raise ZeroDivisionError
    assert not attention._forward_pre_hooks
