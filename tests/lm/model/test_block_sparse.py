"""Patterns against their definitions, blocks against dense attention, and models with them."""

import pytest
import torch

from lm.config.model import ModelConfig
from lm.model import build_model
from lm.model.attention import Mask
from lm.model.block_sparse import BigBird, LocalBlocks, SlidingWindow, attend_by_blocks
from tests.tolerances import assert_close

HEADS, HEAD, LENGTH = 4, 8, 150
PATTERNS = {
    "window": lambda _: SlidingWindow(20), "blocks": lambda _: LocalBlocks(16),
    "bigbird": lambda is_causal: BigBird(8, 2, 2, layer=3, is_causal=is_causal),
}  # fmt: skip


def all_pairs(pattern, length):
    places = torch.arange(length)
    return pattern.build_token_mask(places[:, None], places, length)


def dense(query, key, value, pairs):
    """In float64 and with all pairs: zeros where a query sees nothing."""
    key, value = (x.repeat_interleave(HEADS // x.shape[1], dim=1) for x in (key, value))
    scores = (query @ key.mT / HEAD**0.5).masked_fill(~pairs, -torch.inf)
    return scores.softmax(-1).nan_to_num(0.0) @ value


@pytest.mark.parametrize("kv_heads", [4, 1])
@pytest.mark.parametrize("lengths", [None, [LENGTH, 37], [40, 0]])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("kind", PATTERNS)
def test_blocks_equal_dense_attention_with_the_mask_of_their_pattern(kind, is_causal, lengths, kv_heads):
    pattern, torch_lengths = PATTERNS[kind](is_causal), None if lengths is None else torch.tensor(lengths)
    generator = torch.Generator().manual_seed(0)
    inputs = [
        torch.randn(2, heads, LENGTH, HEAD, generator=generator, dtype=torch.float64).requires_grad_()
        for heads in (HEADS, kv_heads, kv_heads)
    ]
    found = attend_by_blocks(*inputs, pattern, mask=Mask(is_causal=is_causal, key_lengths=torch_lengths))
    mask = Mask(is_causal=is_causal, key_lengths=torch_lengths, visible=all_pairs(pattern, LENGTH)[None, None])
    expected = dense(*inputs, mask.build_tensor(LENGTH, LENGTH, torch.device("cpu")))
    assert_close(found, expected, terms=150, depth=2)
    weights = torch.randn(found.shape, generator=generator, dtype=torch.float64)
    gradients = (torch.autograd.grad((output * weights).sum(), inputs) for output in (found, expected))
    for ours, theirs in zip(*gradients, strict=True):
        assert_close(ours, theirs.nan_to_num(0.0), terms=150, depth=4)


@pytest.mark.parametrize("is_causal", [True, False])
def test_bigbird_has_neighbours_global_and_random_blocks(is_causal):
    seen = all_pairs(BigBird(4, 2, 2, layer=1, is_causal=is_causal), 120)
    blocks = seen.view(30, 4, 30, 4)[:, 0, :, 0]
    assert torch.equal(seen, blocks.repeat_interleave(4, 0).repeat_interleave(4, 1))
    for i in range(30):
        fixed = {j for j in range(30) if abs(i - j) <= 1 or j < 2 or (i < 2 and not is_causal)}
        found = set(blocks[i].nonzero().flatten().tolist())
        assert fixed <= found
        drawn = found - fixed
        if is_causal:
            assert len(drawn) == min(2, max(0, i - 3))
        assert all(j < (i if is_causal else 2 * (i + 1)) for j in drawn)


def mixed(x):
    """The hash of the module, in Python's own integers."""
    x = (x + 0x1E3779B9) % 2**31
    x = (x ^ x >> 16) * 0x7FEB352D % 2**31
    x = (x ^ x >> 15) * 0x046CA68B % 2**31
    return x ^ x >> 16


def test_random_blocks_are_the_same_on_every_machine():
    connected = BigBird(4, 0, 1, layer=5, is_causal=True).build_block_mask(60)
    for i, row in enumerate(connected):
        expected = sorted(range(i - 1), key=lambda j, i=i: mixed(mixed(mixed(5) + i) + j))[:1]
        assert [j for j in row.nonzero().flatten().tolist() if j < i - 1] == expected


KINDS = {
    "window": {"attention": "window", "attention_window": 20},
    "bigbird": {"attention": "bigbird", "attention_block": 8, "global_blocks": 1, "random_blocks": 2},
    "compressed": {"attention": "compressed", "attention_block": 16, "attention_stride": 3},
    "linformer": {"attention": "linformer", "attention_rank": 9},
}


def model_of(kind, **fields):
    shape = {
        "vocab_size": 40, "context_length": 300, "d_model": 32, "n_layers": 2, "n_heads": 4, "init_std": 0.3,
        "n_kv_heads": 2, "qk_norm": True, "value_residual": True,
    }  # fmt: skip
    return build_model(ModelConfig(**shape, **KINDS[kind], **fields), seed=1).eval().requires_grad_(False)


def ids(*shape):
    return torch.randint(40, shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("positions", ["rotary", "sinusoidal"])
def test_padding_changes_nothing_in_an_encoder(kind, positions):
    """A source alone, beside a longer one, and with more padding than that."""
    model, source = model_of(kind, positions=positions, n_encoder_layers=2), ids(2, 200)
    lengths = torch.tensor([200, 71])
    padded = torch.cat((source, ids(2, 44)), dim=1)
    for batch in (model.encode(source, lengths=lengths), model.encode(padded, lengths=lengths)):
        for row, length in enumerate(lengths.tolist()):
            assert_close(batch[row, :length], model.encode(source[row : row + 1, :length])[0], model=model)
