"""Sessions of models that translate: cached logits equal those of each row, with its source, read alone and at once."""

from collections.abc import Callable

import pytest
import torch

from lm.config.model import ModelConfig
from lm.model import DecoderOnly, Transformer, build_model
from tests.lm.decoding.encoder_decoders import SHAPES, VOCABULARY, make_model, random_ids, uncached
from tests.lm.decoding.session_driver import SessionDriver
from tests.lm.model.test_recurrent import small
from tests.tolerances import assert_close

LENGTHS = torch.tensor([7, 3, 1])
COMPRESSED = {"attention": "compressed", "attention_block": 4}
GROUPED = {**COMPRESSED, "n_kv_heads": 2, "value_residual": True}


def make_decoder_only(shape: str = "learned", **fields) -> DecoderOnly:
    config = {
        "vocab_size": VOCABULARY, "context_length": 80, "d_model": 32, "n_layers": 2, "decoder_only": True,
        "n_heads": 4, "init_std": 0.2, **SHAPES[shape], **fields,
    }  # fmt: skip
    model = build_model(ModelConfig(**config), seed=1).eval().requires_grad_(False)
    assert isinstance(model, DecoderOnly)
    return model


def make_recurrent(architecture: str = "lstm", **fields) -> Transformer:
    return small(architecture, vocab_size=VOCABULARY, **fields)


MODELS: dict[str, Callable[[], Transformer]] = {
    **{f"encoder-decoder, {shape}": lambda shape=shape: make_model(shape) for shape in SHAPES},
    **{
        f"decoder-only, {shape}": lambda shape=shape: make_decoder_only(shape)
        for shape in ("learned", "relative, grouped heads", "window", "bigbird")
    },
    "decoder-only, experts": lambda: make_decoder_only(experts=3, experts_per_token=2),
    "lstm": make_recurrent,
    "gru, dot": lambda: make_recurrent("gru", recurrent_attention="dot"),
    "lstm without attention": lambda: make_recurrent(recurrent_attention="none"),
    "compressed": lambda: make_model("rotary, grouped heads", **GROUPED),
    "compressed, overlapping": lambda: make_model(**GROUPED, attention_stride=2),
    "decoder-only, compressed": lambda: make_decoder_only("rotary, grouped heads", **COMPRESSED),
}
each_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)


@each_model
@pytest.mark.parametrize("lengths", [LENGTHS, None], ids=["padded", "equally long"])
def test_cached_logits_equal_uncached(make, lengths):
    """Those of sources without their padding, step by step too: neither padding nor future tokens are seen."""
    model, source, tokens = make(), random_ids(3, 7), random_ids(3, 12, seed=1)
    expected = uncached(model, source, torch.tensor([7, 7, 7]) if lengths is None else lengths, tokens)
    for sizes in ([1] * 12, [12], [3, 1, 1, 6, 1]):
        steps = SessionDriver(model, source, lengths)
        logits = torch.cat([steps.feed(part) for part in tokens.split(sizes, dim=1)], dim=1)
        assert_close(logits, expected, model=model)
    last = SessionDriver(model, source, lengths).feed(tokens, last_only=True)
    assert_close(last, expected[:, -1:], model=model)
    assert expected.isfinite().all()


@each_model
def test_reordered_and_truncated_rows_continue_as_before(make):
    """A random walk over layouts, equal and ragged."""
    model, source, lengths = make(), random_ids(3, 7), LENGTHS
    chance = torch.Generator().manual_seed(0)
    steps, tokens = SessionDriver(model, source, lengths), torch.empty(3, 0, dtype=torch.long)
    for step in range(14):
        fresh = random_ids(len(tokens), 1 + (step % 7 == 3), seed=step)
        tokens = torch.cat((tokens, fresh), dim=1)
        expected = uncached(model, source, lengths, tokens)[:, -fresh.shape[1] :]
        assert_close(steps.feed(fresh), expected, model=model)
        if step % 11 == 10:
            tokens = tokens[:, : step // 2]
            steps.truncate(step // 2)
        if step % 3 == 0:
            size = int(torch.randint(1, 8, (1,), generator=chance))
            rows = torch.randint(len(tokens), (size,), generator=chance)
            rows = rows.sort().values if step % 2 else rows
        else:  # hypotheses change places within their sentences, all of one size
            rows = torch.arange(len(tokens)).repeat_interleave(2 if len(tokens) < 6 else 1)
        steps.reorder(rows)
        source, lengths, tokens = source[rows], lengths[rows], tokens[rows]
        assert steps.length == tokens.shape[1]


def test_an_ensemble_averages_probabilities():
    source, tokens = random_ids(3, 7), random_ids(3, 5, seed=1)
    models = [make_model(seed=seed) for seed in (1, 2, 3)]
    probabilities = [uncached(model, source, LENGTHS, tokens).double().softmax(-1) for model in models]
    together = SessionDriver(models, source, LENGTHS)
    found = together.feed(tokens)
    assert_close(found.exp(), sum(probabilities) / 3, model=models[0])
    together.truncate(2)
    together.reorder(torch.tensor([2, 2]))
    assert together.length == 2
    again = together.feed(tokens[[2, 2], 2:])
    assert_close(again, found[[2, 2], 2:], model=models[0])
    alone = SessionDriver(make_model(seed=1), source, LENGTHS).feed(tokens)
    assert_close(alone.softmax(-1), probabilities[0], model=models[0])
