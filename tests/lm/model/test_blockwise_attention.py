import pytest
import torch
import torch.nn.functional as F

from lm.model.cpu_kernels import blockwise_causal_attention
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
