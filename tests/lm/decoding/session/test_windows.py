import itertools

import pytest
import torch

from lm.config.model import ModelConfig
from lm.model import DecoderOnly, build_model
from tests.lm.decoding.session_driver import SessionDriver
from tests.tolerances import assert_close

CONTEXT = 12
SHAPES = {
    "learned": {"positions": "learned", "norm": "layernorm", "activation": "gelu", "bias": True},
    "rotary, grouped heads": {"positions": "rotary", "n_kv_heads": 1, "qk_norm": True},
    "sinusoidal, post-norm": {"positions": "sinusoidal", "norm_position": "post"},
    "sinusoidal in halves": {"positions": "sinusoidal-half"},
    "relative": {"positions": "relative", "n_kv_heads": 2, "max_distance": 3},
    "biases by bucket": {"positions": "t5"},
    "alibi": {"positions": "alibi", "n_kv_heads": 2},
    "none": {"positions": "none", "n_kv_heads": 2},
    "values shared": {"value_residual": True, "softcap": 3.0},
    "key offset": {"key_offset": True},
}


def make_model(shape: str = "learned", context: int = CONTEXT) -> DecoderOnly:
    config = ModelConfig(
        vocab_size=50, context_length=context, d_model=32, n_layers=2, n_heads=4, init_std=0.2, **SHAPES[shape]
    )
    model = build_model(config, seed=1).eval()
    assert isinstance(model, DecoderOnly)
    return model


def random_tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(50, (rows, length), generator=torch.Generator().manual_seed(rows * 100 + length))


def fed_in(steps: SessionDriver, tokens: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    return torch.cat([steps.feed(part) for part in tokens.split(sizes, dim=1)], dim=1)


def by_hand(model: DecoderOnly, tokens: torch.Tensor) -> torch.Tensor:
    """Reads one token after another into a list; when it is full, only its last half is kept."""
    logits, window = [], []
    for token in tokens.unbind(1):
        if len(window) == model.config.context_length:
            window = window[len(window) - len(window) // 2 :]
        window.append(token)
        with torch.no_grad():
            logits.append(model(torch.stack(window, dim=1))[:, -1])
    return torch.stack(logits, dim=1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("context", [1, 2, 7, 12])
def test_logits_equal_reading_by_hand_far_beyond_the_context(shape, context):
    model, tokens = make_model(shape, context), random_tokens(3, 30)
    expected = by_hand(model, tokens)
    several = ([30], [5, 1, 1, 9, 10, 4], [12, 1, 12, 5])
    for cached, sizes in [(True, [1] * 30), *itertools.product((True, False), several)]:
        logits = fed_in(SessionDriver(model, cached=cached), tokens, sizes)
        assert logits.shape == (3, 30, 50)
        assert logits.dtype == torch.float32
        assert_close(logits, expected, model=model)
