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


def in_windows(model, tokens, width):
    """Logits after each token, whose window is read alone and without a mask, by a model without positions."""
    parts = [tokens[:, max(0, end - width) : end] for end in range(1, tokens.shape[1] + 1)]
    of_narrow = [model(part)[:, -1] for part in parts[: width - 1]]
    of_wide = [model(torch.cat(parts[width - 1 :]))[:, -1]] if parts[width - 1 :] else []
    return torch.cat([*of_narrow, *of_wide])[None]


NEAR_A_BLOCK = (1, 2, 15, 16, 17, 33)


@pytest.mark.parametrize("widths", [NEAR_A_BLOCK, pytest.param(range(1, 41), marks=pytest.mark.slow)], ids=len)
def test_a_token_attends_within_its_window(widths):
    """Its own among them, in one pass and with a cache."""
    fields = {"n_layers": 1, "positions": "none", "attention_window": None}
    full, tokens = model_of("window", **fields, attention="full").double(), ids(1, 50)
    for width in widths:
        model = model_of("window", **{**fields, "attention_window": width}).double()
        model.load_state_dict(full.state_dict())
        expected, cache = in_windows(full, tokens, width), model.new_cache()
        by_parts = [model(part, cache=cache) for part in tokens.split([3, *[1] * 7, 40], dim=1)]
        for found in (model(tokens), torch.cat(by_parts, dim=1)):
            torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)


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
