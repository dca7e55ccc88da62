"""The models: the same block everywhere, published sizes, and the numbers of independent implementations."""

from typing import get_args

import pytest
import torch

from lm.config.model import ModelConfig, Positions
from lm.model import build_model
from lm.model.loss import cross_entropy
from tests.lm.model import hugging_face
from tests.tolerances import assert_close

SHARED = {"value_residual": True, "key_offset": True, "softcap": 5.0}


def small(**fields: object) -> ModelConfig:
    values = {"vocab_size": 97, "context_length": 32, "d_model": 48, "n_layers": 3, "n_heads": 4, **fields}
    return ModelConfig(**values)


def randomised(config: ModelConfig):
    model = build_model(config).eval()
    hugging_face.randomise(model)
    return model


def ids(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 97, shape, generator=torch.Generator().manual_seed(seed))


def test_equals_hugging_face_gpt2():
    """Other architectures are compared where they are exported and imported."""
    ours = randomised(small(positions="learned", norm="layernorm", activation="gelu-tanh", bias=True))
    theirs, tokens = hugging_face.gpt2(ours), ids(4, 32)
    with torch.no_grad():
        logits, reference = ours(tokens), theirs(tokens, labels=tokens)
    assert_close(logits, reference.logits, model=ours)
    loss = cross_entropy(logits[:, :-1], tokens[:, 1:]) / tokens[:, 1:].numel()
    assert_close(loss, reference.loss, model=ours)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_softly_capped(dtype):
    """As the formula in float64."""
    capped, plain = randomised(small(softcap=4.0)), randomised(small())
    hidden = 30 * torch.randn(500, 48, generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
        logits, expected = capped.logits(hidden), plain.logits(hidden)
    assert (expected.dtype, logits.dtype) == (dtype, torch.float32)
    assert expected.abs().max() > 10.0
    assert_close(logits, 4 * torch.tanh(expected.double() / 4), terms=48)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("positions", ["rotary", "alibi", "relative", "t5"])
def test_the_future_never_changes_the_past(dtype, positions):
    model = randomised(small(positions=positions, **SHARED)).to(dtype).train()
    tokens, changed = ids(2, 20), ids(2, 20)
    changed[:, 10:] = (changed[:, 10:] + 1) % 97
    assert torch.equal(model(tokens)[:, :10], model(changed)[:, :10])
    assert not torch.equal(model(tokens)[:, 10:], model(changed)[:, 10:])


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"source_vocab_size": 61, "positions": "sinusoidal", "norm_position": "post"},
        SHARED,
        {"positions": "relative", "max_distance": 3, "n_kv_heads": 2},
        {"positions": "t5"},
        {"positions": "alibi"},
    ],
)
def test_encoder_decoder_ignores_padding_and_the_future(fields):
    model = randomised(small(n_encoder_layers=2, **fields))
    source, target, lengths = ids(3, 9) % 61, ids(3, 6), torch.tensor([9, 5, 1])
    logits = model(source, target, lengths=lengths)
    padded = torch.cat((source, ids(3, 4, seed=5) % 61), dim=1)
    for row, length in enumerate(lengths.tolist()):
        padded[row, length:] = 60
    assert_close(model(padded, target, lengths=lengths), logits, model=model)
    changed = target.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % 97
    assert_close(model(source, changed, lengths=lengths)[:, :4], logits[:, :4], model=model)
    for row, length in enumerate(lengths.tolist()):
        alone = model(source[row : row + 1, :length], target[row : row + 1])
        assert_close(alone[0], logits[row], model=model)


@pytest.mark.parametrize("positions", get_args(Positions))
@pytest.mark.parametrize("labels", [(), ("a", "b", "c")])
def test_padding_never_changes_a_logit_of_a_masked_model(positions, labels):
    model, tokens, lengths = (
        randomised(small(objective="masked", positions=positions, labels=labels)), ids(3, 9), torch.tensor([9, 4, 6])
    )  # fmt: skip
    with torch.inference_mode():
        together = model(tokens, lengths=lengths)
        for row, length in enumerate(lengths.tolist()):
            alone = model(tokens[row : row + 1, :length])
            assert_close(together[row, : alone.shape[1]], alone[0], model=model)
