"""Key offset: half of the key/value heads attend to each position by the key of the one before it."""

import pytest
import torch

from lm.config.model import ModelConfig
from lm.model import build_model
from lm.model.attention import AttentionInputs, Mask
from tests.lm.model.hugging_face import randomise


@pytest.mark.parametrize(("heads", "kv_heads", "offset"), [(4, 4, 2), (3, 3, 1), (4, 2, 1), (2, 1, 0)])
def test_scores_are_those_of_the_key_before_in_float64(heads, kv_heads, offset):
    """In a loop over positions; the first position has no key before it, so its score is zero."""
    config = ModelConfig(d_model=8 * heads, n_layers=1, n_heads=heads, n_kv_heads=kv_heads, positions="none",
                         vocab_size=20, key_offset=True)  # fmt: skip
    model = build_model(config).eval()
    randomise(model)
    attention = model.double().requires_grad_(False).decoder.blocks[0].attention
    x = torch.randn(1, 6, 8 * heads, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    queries, keys, values = (x[0] @ attention.input.weight.T).split([8 * heads, 8 * kv_heads, 8 * kv_heads], dim=1)
    outputs = torch.zeros(6, 8 * heads, dtype=torch.float64)
    for head in range(heads):
        own, shared = slice(8 * head, 8 * head + 8), head * kv_heads // heads
        of_key = slice(8 * shared, 8 * shared + 8)
        before = int(shared >= kv_heads - offset)
        for position in range(6):
            seen = range(position + 1)
            scores = [float(queries[position, own] @ keys[at - before, of_key]) if at >= before else 0.0 for at in seen]
            weights = (torch.tensor(scores, dtype=torch.float64) / 8**0.5).softmax(0)
            outputs[position, own] = weights @ values[: position + 1, of_key]
    found = attention(x, AttentionInputs(mask=Mask(is_causal=True)))
    torch.testing.assert_close(found[0], outputs @ attention.output.weight.T)
