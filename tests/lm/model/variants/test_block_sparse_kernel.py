"""Attention block by block equals dense attention with the mask of its pattern, and never holds all pairs."""

import pytest
import torch

from lm.model.mask import Mask
from lm.model.variants import block_sparse as block_attention
from lm.model.variants.block_sparse import BigBird, BlockSparseKernel, LocalBlocks, SlidingWindow
from tests.tolerances import assert_close

HEADS, HEAD = 4, 8


def bigbird(is_causal):
    return BigBird(8, 2, 2, layer=3, is_causal=is_causal)


KINDS = {"window": lambda _: SlidingWindow(20), "blocks": lambda _: LocalBlocks(16), "bigbird": bigbird}


def tensors(length, *, batch=2, kv_heads=HEADS, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, heads, length, HEAD) for heads in (HEADS, kv_heads, kv_heads)]
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


def gradients(output, inputs):
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(9), dtype=output.dtype)
    return torch.autograd.grad((output * weights).sum(), inputs)


def dense(query, key, value, pairs):
    """In float64 and with all pairs: zeros where a query sees nothing."""
    key, value = (x.repeat_interleave(HEADS // x.shape[1], dim=1) for x in (key, value))
    scores = (query @ key.mT / HEAD**0.5).masked_fill(~pairs, -torch.inf)
    return scores.softmax(-1).nan_to_num(0.0) @ value


@pytest.mark.parametrize("held", [1 << 30, 6000])
@pytest.mark.parametrize("kv_heads", [4, 1])
@pytest.mark.parametrize("lengths", [None, [150, 37]])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_dense_attention_with_its_mask(kind, is_causal, lengths, kv_heads, held, monkeypatch):
    monkeypatch.setattr(block_attention, "_SAVED_ON_CPU", held)
    pattern = KINDS[kind](is_causal)
    inputs = tensors(150, kv_heads=kv_heads)
    mask = Mask(is_causal=is_causal, key_lengths=None if lengths is None else torch.tensor(lengths))
    found = BlockSparseKernel(pattern, mask)(*inputs)
    expected = dense(*inputs, mask.with_pattern(pattern).build_tensor(150, 150, torch.device("cpu")))
    assert_close(found, expected, terms=150, depth=2)
    for ours, theirs in zip(gradients(found, inputs), gradients(expected.nan_to_num(0.0), inputs), strict=True):
        assert_close(ours, theirs.nan_to_num(0.0), terms=150, depth=4)


@pytest.mark.parametrize("is_causal", [True, False])
def test_padding_is_masked_and_empty_rows_give_zeros(is_causal):
    mask = Mask(is_causal=is_causal, key_lengths=torch.tensor([40, 0]))
    inputs = tensors(130, dtype=torch.float32)
    before = BlockSparseKernel(bigbird(is_causal), mask)(*inputs)
    with torch.no_grad():
        for x in inputs[1:]:
            x[0, :, 40:] = 1e4
            x[1] = -1e4
    after = BlockSparseKernel(bigbird(is_causal), mask)(*inputs)
    assert torch.equal(after, before)
    assert not after[1].any()
    assert all(gradient.isfinite().all() for gradient in gradients(after, inputs))


@pytest.mark.parametrize("kind", KINDS)
def test_recomputation_repeats_dropout(kind, monkeypatch):
    """The gradient of a sum of outputs is that of the weights that were drawn: of the values, by finite differences."""
    monkeypatch.setattr(block_attention, "_SAVED_ON_CPU", 3000)
    query, key, value = tensors(100, batch=1)

    def run(value):
        torch.manual_seed(5)
        return BlockSparseKernel(KINDS[kind](True), Mask.causal(), dropout=0.3)(query, key, value)

    direction = torch.randn(value.shape, dtype=torch.float64)
    linear = (run(value + direction) - run(value)).sum()  # attention is linear in the values
    (gradient,) = torch.autograd.grad(run(value).sum(), value)
    assert_close((gradient * direction).sum(), linear, terms=value.numel(), depth=2)
    without = BlockSparseKernel(KINDS[kind](True), Mask.causal())(query, key, value)
    assert (run(value) - without).abs().max() > 0.1
