"""Models whose attention has a pattern: what they see, with caches, padding and every kind of position."""

import pytest
import torch

from lm.config.model import ModelConfig
from lm.model.transformer import build_model
from tests.tolerances import assert_close

SHAPE = {"vocab_size": 40, "context_length": 300, "d_model": 32, "n_layers": 2, "n_heads": 4, "init_std": 0.3}
KINDS = {
    "window": {"attention": "window", "attention_window": 20},
    "bigbird": {"attention": "bigbird", "attention_block": 8, "global_blocks": 1, "random_blocks": 2},
    "compressed": {"attention": "compressed", "attention_block": 16, "attention_stride": 3},
}
CACHED = [kind for kind in KINDS if kind != "compressed"]
ENCODERS = {**KINDS, "linformer": {"attention": "linformer", "attention_rank": 9}}
POSITIONS = ["rotary", "alibi", "t5", "relative", "learned", "sinusoidal", "none"]
FIELDS = {"n_kv_heads": 2, "qk_norm": True, "value_residual": True}


def model_of(kind, **fields):
    model = build_model(ModelConfig(**{**SHAPE, **ENCODERS[kind], **fields}), seed=1).eval()
    return model.requires_grad_(False)


def ids(*shape):
    return torch.randint(40, shape, generator=torch.Generator().manual_seed(0))


NEAR_A_BLOCK = (1, 2, 15, 16, 17, 33)


@pytest.mark.parametrize("kind", CACHED)
@pytest.mark.parametrize("positions", POSITIONS)
def test_cached_equals_uncached(kind, positions):
    model, tokens = model_of(kind, positions=positions, **FIELDS), ids(2, 203)
    cache = model.new_cache()
    logits = torch.cat([model(part, cache=cache) for part in tokens.split([5, 1, 1, 1, 100, 1, 94], dim=1)], dim=1)
    assert_close(logits, model(tokens), model=model)


@pytest.mark.parametrize(
    ("kind", "positions"),
    [
        *((kind, positions) for kind in KINDS for positions in ("rotary", "sinusoidal", "alibi", "t5", "relative")),
        ("linformer", "rotary"),
        ("linformer", "sinusoidal"),
    ],
)
def test_padding_changes_nothing_in_an_encoder(kind, positions):
    """A source alone, beside a longer one, and with more padding than that."""
    model, source = model_of(kind, positions=positions, n_encoder_layers=2, **FIELDS), ids(2, 200)
    lengths = torch.tensor([200, 71])
    batch = model.encode(source, lengths=lengths)
    for row, length in enumerate(lengths.tolist()):
        alone = model.encode(source[row : row + 1, :length])
        assert_close(batch[row : row + 1, :length], alone, model=model)
    padded = torch.cat((source, ids(2, 44)), dim=1)
    found = model.encode(padded, lengths=lengths)[:, :200]
    assert_close(found[0], batch[0], model=model)
    assert_close(found[1, :71], batch[1, :71], model=model)
