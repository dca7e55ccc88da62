import pytest
import torch
import torch.nn.functional as F

from lm.config.model import ModelConfig
from lm.model import blockwise_attention
from lm.model.attention import attend
from lm.model.blockwise_attention import blockwise_causal_attention, is_blockwise_faster
from lm.model.mask import Mask
from lm.model.transformer import build_model, choose_kernels
from tests.tolerances import assert_close


def heads(n: int, length: int, *, seed: int, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(2, n, length, 16, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("length", [1, 127, 128, 129, 500])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_blockwise_attention_equals_the_fused_kernel(length, kv_heads):
    query, key, value = heads(4, length, seed=0), heads(kv_heads, length, seed=1), heads(kv_heads, length, seed=2)
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    assert_close(blockwise_causal_attention(query, key, value), expected, terms=max(16, length), depth=2)


def test_in_bfloat16_they_are_as_exact_as_that_type():
    query, key, value = (heads(2, 700, seed=seed, dtype=torch.bfloat16) for seed in range(3))
    expected = F.scaled_dot_product_attention(query.float(), key.float(), value.float(), is_causal=True)
    assert_close(blockwise_causal_attention(query, key, value), expected, depth=2)


def test_they_are_taken_only_where_they_were_faster_and_nothing_else_is_asked(monkeypatch):
    monkeypatch.setattr(blockwise_attention, "blockwise_dtypes", {torch.bfloat16})
    long = heads(2, 600, seed=0, dtype=torch.bfloat16)
    assert is_blockwise_faster(long, 600)
    assert not is_blockwise_faster(long, 700)
    assert not is_blockwise_faster(long[:, :, :512], 512)
    assert not is_blockwise_faster(long.float(), 600)
    assert not is_blockwise_faster(long.clone().requires_grad_(), 600)
    with torch.autocast("cpu", torch.bfloat16):
        assert not is_blockwise_faster(long, 600)
    by_blocks = attend(long, long, long, mask=Mask.causal())
    assert by_blocks.equal(blockwise_causal_attention(long, long, long))
    monkeypatch.setattr(blockwise_attention, "blockwise_dtypes", set())
    assert not is_blockwise_faster(long, 600)
    assert_close(attend(long, long, long, mask=Mask.causal()), by_blocks, depth=2)


@pytest.mark.parametrize(
    ("fields", "chosen"),
    [
        ({"context_length": 600}, True),
        ({"context_length": 512}, False),
        ({"context_length": 600, "architecture": "lstm"}, False),
    ],
)
def test_a_model_chooses_them_if_its_attention_can_be_long(monkeypatch, fields, chosen):
    monkeypatch.setattr(blockwise_attention, "blockwise_dtypes", set())
    monkeypatch.setattr(blockwise_attention, "is_clearly_faster", lambda: True)
    choose_kernels(build_model(ModelConfig(vocab_size=16, d_model=16, n_layers=1, **fields)), torch.bfloat16)
    assert is_blockwise_faster(heads(2, 600, seed=0, dtype=torch.bfloat16), 600) is chosen
