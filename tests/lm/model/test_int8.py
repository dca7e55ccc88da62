"""Matrices in 8 bits are near to what they were, and multiply as what they are."""

import pytest
import torch

from lm.config.model import ModelConfig
from lm.model import layers as linear
from lm.model.layers import Linear, TokenEmbedding, quantise
from lm.model.transformer import build_model
from tests.tolerances import assert_close


def test_no_weight_is_off_by_more_than_half_a_step():
    weight = torch.randn(13, 7) * torch.logspace(-6, 6, 13)[:, None]
    rounded = TokenEmbedding(13, 7, _weight=weight).to_int8()
    off = (rounded(torch.arange(13)) - weight).abs()
    assert bool((off <= rounded.scale[:, None] * 0.5 * (1 + 1e-5)).all())
    assert bool((rounded.weight.abs().amax(1) == 127).all())


@pytest.mark.parametrize("at_once", [1000, 12, 1])
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_matmul_uses_the_quantised_weights(has_bias, at_once, monkeypatch):
    monkeypatch.setattr(linear, "_WEIGHTS_PER_CHUNK", at_once)
    layer, x = Linear(6, 5, bias=has_bias).requires_grad_(False).to_int8(), torch.randn(2, 3, 6)
    weight = (layer.weight.float() * layer.scale[:, None]).double()
    expected = x.double() @ weight.T + (layer.bias.double() if has_bias else 0)
    assert_close(layer(x), expected, terms=6)
    assert_close(layer.forward_slice(x, slice(1, 3)), expected[..., 1:3], terms=6)
    assert_close(layer.forward_activated(x, "relu"), expected.relu(), terms=6)


@pytest.mark.parametrize(
    "fields",
    [{}, {"tie_embeddings": False, "qk_norm": True}, {"n_encoder_layers": 2}, {"objective": "masked"},
     {"architecture": "lstm"}, {"experts": 2}],
)  # fmt: skip
def test_a_quantised_model_is_close_to_the_original(fields):
    model = build_model(ModelConfig(vocab_size=50, context_length=16, d_model=64, n_layers=2, **fields)).eval()
    ids = torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(1))
    given = (ids, ids) if "n_encoder_layers" in fields else (ids,)
    with torch.inference_mode():
        before = model(*given)
        held = sum(tensor.nbytes for tensor in model.state_dict().values())
        quantise(model)
        after = model(*given)
    assert sum(tensor.nbytes for tensor in model.state_dict().values()) < held
    assert not torch.equal(before, after)
    most = 0.3 if "experts" in fields else 0.03  # a token may be sent to another expert
    assert float((after - before).norm() / before.norm()) < most
