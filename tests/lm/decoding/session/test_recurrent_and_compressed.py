"""Steps of models that need a row for each hypothesis equal reading each row alone and at once."""

from __future__ import annotations

import pytest
import torch

from lm.config.decoding import TranslationConfig
from lm.errors import UsageError
from lm.model.attention import capture_attention_weights
from lm.tokenizer.special_tokens import build_pair_frames
from tests.lm.decoding.encoder_decoders import make_model, random_ids, uncached
from tests.lm.decoding.session.test_encoder_decoders import LENGTHS
from tests.lm.decoding.session_driver import SessionDriver
from tests.lm.decoding.test_translation import Translator, texts, untrained
from tests.lm.model.variants.test_recurrent import small
from tests.tolerances import approx, assert_close

COMPRESSED = {"attention": "compressed", "attention_block": 4, "n_kv_heads": 2, "value_residual": True}
SHAPES = [
    {}, {"architecture": "gru", "recurrent_attention": "dot"}, {"recurrent_attention": "none"}, COMPRESSED,
    {**COMPRESSED, "attention_stride": 2, "positions": "relative"},
]  # fmt: skip


def make(fields):
    if "attention" in fields:
        return make_model("rotary, grouped heads", **fields)
    return small(**{"architecture": "lstm", "vocab_size": 40, **fields})


@pytest.mark.parametrize("fields", SHAPES)
@pytest.mark.parametrize("sizes", [[1] * 8, [8], [3, 1, 4]])
def test_cached_steps_equal_reading_each_row_alone_at_once(fields, sizes):
    model, source, tokens = make(fields), random_ids(3, 7), random_ids(3, 8, seed=1)
    expected = uncached(model, source, LENGTHS, tokens)
    steps = SessionDriver(model, source, LENGTHS)
    logits = torch.cat([steps.feed(part) for part in tokens.split(sizes, dim=1)], dim=1)
    assert_close(logits, expected, model=model)
    last = SessionDriver(model, source, LENGTHS).feed(tokens, last_only=True)
    assert_close(last, expected[:, -1:], model=model)


@pytest.mark.parametrize("fields", SHAPES)
def test_reordered_and_truncated_rows_continue_as_before(fields):
    model, source, lengths = make(fields), random_ids(3, 7), LENGTHS
    chance = torch.Generator().manual_seed(0)
    steps, tokens = SessionDriver(model, source, lengths), torch.empty(3, 0, dtype=torch.long)
    for step in range(20):
        fresh = random_ids(len(tokens), 1 + (step % 5 == 3), seed=step)
        tokens = torch.cat((tokens, fresh), dim=1)
        expected = uncached(model, source, lengths, tokens)[:, -fresh.shape[1] :]
        assert_close(steps.feed(fresh), expected, model=model)
        if step % 6 == 5:
            tokens = tokens[:, : step // 2]
            steps.truncate(step // 2)
        rows = torch.arange(len(tokens))
        if step % 3 == 0:
            rows = torch.randint(len(tokens), (int(torch.randint(1, 7, (1,), generator=chance)),), generator=chance)
        steps.reorder(rows)
        source, lengths, tokens = source[rows], lengths[rows], tokens[rows]
        assert steps.length == tokens.shape[1]


@pytest.mark.parametrize("context", [6, 40])
def test_steps_without_a_source_equal_recomputation(context):
    model, tokens = make({"n_encoder_layers": 0, "context_length": context}), random_ids(2, 15)
    cached, again = SessionDriver(model), SessionDriver(model, cached=False)
    for part in tokens.split([3, 1, 1, 7, 3], dim=1):
        assert_close(cached.feed(part), again.feed(part), model=model)
    cached.truncate(9)
    again.truncate(9)
    assert_close(cached.feed(tokens[:, :2]), again.feed(tokens[:, :2]), model=model)


@pytest.mark.parametrize("fields", [{}, COMPRESSED])
def test_coverage_is_that_of_the_attention_weights(fields):
    model, source, tokens = make(fields), random_ids(3, 7), random_ids(3, 6, seed=1)
    steps = SessionDriver(model, source, LENGTHS, coverage=True)
    for part in tokens.split([1, 3, 2], dim=1):
        steps.feed(part)
    expected = []
    for one, length, row in zip(source, LENGTHS, tokens, strict=True):
        with capture_attention_weights(model.decoder.attention_layers(cross=True)) as weights:
            model(one[None, :length], row[None])
        expected.append(float(weights[-1][0].double().mean(0).sum(0).clamp(max=1).log().sum()))
    assert steps.coverage().tolist() == approx(expected, model=model)
    rows = torch.tensor([0, 0, 2, 2])
    steps.reorder(rows)
    assert steps.coverage().tolist() == approx([expected[row] for row in rows], model=model)


SOURCES = ["The owl saw the fox.", "by the mill", "", "sang the owl and the fox ran by the mill", "fox"]


def greedy(member, source: str, count: int) -> list[int]:
    """The most likely tokens, one after the other, each time read again from the start."""
    frames = build_pair_frames(member.tokenizer, member.source_tokenizer)
    read = torch.tensor([frames.source.wrap(member.source_tokenizer.encode(source)).tolist()])
    tokens = [frames.start]
    for _ in range(count):
        tokens.append(int(member.model(read, torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[1:]


@pytest.mark.parametrize("scores", ["none", "additive"])
def test_a_beam_of_one_is_greedy(scores):
    member = untrained(architecture="gru", recurrent_attention=scores, n_heads=4)
    for line in Translator([member], TranslationConfig(beam=1)).translate(filter(None, SOURCES)):
        tokens = list(line.translations[0].tokens)
        assert tokens == greedy(member, line.source, len(tokens))


@pytest.mark.parametrize("beam", [1, 3])
def test_batches_change_no_translation(beam):
    member = untrained(architecture="lstm", n_heads=4)
    together = texts(member, SOURCES, TranslationConfig(beam=beam))
    assert texts(member, SOURCES, TranslationConfig(beam=beam, batch_tokens=1)) == together


def test_recurrent_models_and_transformers_decide_together():
    models = [untrained(architecture="lstm", n_heads=4), untrained(seed=1)]
    assert len(texts(models, SOURCES, TranslationConfig(beam=3))) == len(SOURCES)


def test_a_coverage_penalty_needs_attention():
    config = TranslationConfig(coverage_penalty=0.2)
    with pytest.raises(UsageError, match="needs a model with cross-attention"):
        Translator([untrained(architecture="lstm", recurrent_attention="none", n_heads=4)], config)
    assert texts(untrained(architecture="lstm", n_heads=4), SOURCES, config)
