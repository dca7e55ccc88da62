"""Steps of decoder-only models that translate equal reading each row, its source before it, alone and at once."""

from __future__ import annotations

import pytest
import torch

from lm.config.decoding import TranslationConfig
from lm.config.model import ModelConfig
from lm.decoding.translation import Translator
from lm.errors import UsageError
from lm.model.transformer import DecoderOnly, build_model
from lm.tokenizer.special_tokens import build_pair_frames
from tests.lm.decoding.encoder_decoders import SHAPES, VOCABULARY, random_ids, uncached
from tests.lm.decoding.session_driver import SessionDriver
from tests.lm.decoding.test_translation import texts, untrained
from tests.tolerances import approx, assert_close

LENGTHS = torch.tensor([7, 3, 1])
EXPERTS = {"experts": 3, "experts_per_token": 2}
ALL_SHAPES = {**SHAPES, "experts": EXPERTS}


def make_model(shape: str = "learned", **fields) -> DecoderOnly:
    config = {
        "vocab_size": VOCABULARY, "context_length": 80, "d_model": 32, "n_layers": 3, "decoder_only": True,
        "n_heads": 4, "init_std": 0.2, **ALL_SHAPES[shape], **fields,
    }  # fmt: skip
    model = build_model(ModelConfig(**config), seed=1).eval().requires_grad_(False)
    assert isinstance(model, DecoderOnly)
    return model


@pytest.mark.parametrize("shape", ALL_SHAPES)
@pytest.mark.parametrize("sizes", [[1] * 12, [12], [3, 1, 1, 6, 1]])
def test_cached_steps_equal_reading_each_row_alone_at_once(shape, sizes):
    model, source, tokens = make_model(shape), random_ids(3, 7), random_ids(3, 12, seed=1)
    for lengths in (LENGTHS, torch.tensor([7, 7, 7])):
        expected = uncached(model, source, lengths, tokens)
        steps = SessionDriver(model, source, lengths)
        logits = torch.cat([steps.feed(part) for part in tokens.split(sizes, dim=1)], dim=1)
        assert_close(logits, expected, model=model)
        last = SessionDriver(model, source, lengths).feed(tokens, last_only=True)
        assert_close(last, expected[:, -1:], model=model)


@pytest.mark.parametrize("shape", ALL_SHAPES)
def test_padding_never_changes_results(shape):
    model, source, tokens = make_model(shape), random_ids(3, 7), random_ids(3, 5, seed=1)
    other = source.clone()
    for row, length in zip(other, LENGTHS, strict=True):
        row[length:] = 39
    expected = SessionDriver(model, source, LENGTHS).feed(tokens)
    for padded in (other, torch.cat((source, source), dim=1)):
        assert_close(SessionDriver(model, padded, LENGTHS).feed(tokens), expected, model=model)
    assert expected.isfinite().all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(3))
def test_reordered_and_truncated_rows_continue_as_before(shape, seed):
    """Random walks over layouts, equal and ragged, long enough for slots to be given up."""
    model, source, lengths = make_model(shape), random_ids(3, 7), LENGTHS
    chance = torch.Generator().manual_seed(seed)
    steps, tokens = SessionDriver(model, source, lengths), torch.empty(3, 0, dtype=torch.long)
    for step in range(30):
        fresh = random_ids(len(tokens), 1 + (step % 7 == 3), seed=100 * seed + step)
        tokens = torch.cat((tokens, fresh), dim=1)
        expected = uncached(model, source, lengths, tokens)[:, -fresh.shape[1] :]
        assert_close(steps.feed(fresh), expected, model=model)
        if step % 11 == 10:
            tokens = tokens[:, : step // 2]
            steps.truncate(step // 2)
        if step % 3 == 0:
            size = int(torch.randint(1, 8, (1,), generator=chance))
            rows = torch.randint(len(tokens), (size,), generator=chance).sort().values
        else:  # hypotheses change places within their sentences, all of one size
            rows = torch.arange(len(tokens)).repeat_interleave(2 if len(tokens) < 6 else 1)
        steps.reorder(rows)
        source, lengths, tokens = source[rows], lengths[rows], tokens[rows]
        assert steps.length == tokens.shape[1]


def test_a_source_is_prefilled_once_for_all_hypotheses():
    model, read = make_model("rotary, grouped heads"), []
    model.decoder.blocks[0].register_forward_pre_hook(lambda _, inputs: read.append(tuple(inputs[0].shape)))
    steps = SessionDriver(model, random_ids(3, 7), LENGTHS)
    steps.feed(random_ids(3, 1))
    steps.reorder(torch.arange(3).repeat_interleave(5))
    steps.feed(random_ids(15, 1))
    assert read == [(3, 7, 32), (3, 1, 32), (3, 5, 32)]  # three sentences, at last with five hypotheses each
    assert steps.cache._cache.self_attention[0].keys_and_values()[0].shape[:3] == (3, 1, 7 + 1 + 5)


def test_slots_that_none_remembers_are_given_up():
    steps = SessionDriver(make_model("rotary, grouped heads"), random_ids(2, 7), torch.tensor([7, 4]))
    steps.feed(random_ids(2, 1))
    rows, most = torch.arange(2).repeat_interleave(4), 0
    for step in range(100):
        steps.reorder(rows)  # each time all continue from the first of their sentence
        steps.feed(random_ids(8, 1, seed=step))
        rows = torch.tensor([0, 0, 0, 0, 4, 4, 4, 4])
        most = max(most, steps.cache._cache.length)
    assert steps.length == 101
    assert most < 7 + 101 + 4 * 20


SOURCES = ["The owl saw the fox.", "by the mill", "", "sang the owl and the fox ran by the mill", "fox"]
ONE_STACK = {"n_encoder_layers": 0, "n_layers": 2, "decoder_only": True}


def greedy(member, source: str, count: int) -> list[int]:
    """The most likely tokens, one after the other, each time read again from the start."""
    frames = build_pair_frames(member.tokenizer, member.source_tokenizer)
    read = [*frames.source.wrap(member.source_tokenizer.encode(source)).tolist(), frames.start]
    tokens: list[int] = []
    for _ in range(count):
        tokens.append(int(member.model(torch.tensor([[*read, *tokens]]))[0, -1].argmax()))
    return tokens


@pytest.mark.parametrize("positions", ["rotary", "learned", "relative"])
def test_a_beam_of_one_is_greedy(positions):
    member = untrained(**ONE_STACK, positions=positions)
    for line in Translator([member], TranslationConfig(beam=1)).translate(filter(None, SOURCES)):
        tokens = list(line.translations[0].tokens)
        assert tokens == greedy(member, line.source, len(tokens))


@pytest.mark.parametrize("positions", ["rotary", "sinusoidal", "t5"])
@pytest.mark.parametrize("beam", [1, 3])
def test_batches_change_no_translation_and_no_score(positions, beam):
    member = untrained(**ONE_STACK, positions=positions)
    together, alone = (
        list(Translator([member], TranslationConfig(beam=beam, batch_tokens=size)).translate(SOURCES))
        for size in (1024, 1)
    )
    for left, right in zip(together, alone, strict=True):
        assert left.translations[0].tokens == right.translations[0].tokens
        assert left.translations[0].score == approx(right.translations[0].score, model=member.model)


def test_models_with_and_without_an_encoder_decide_together():
    models = [untrained(**ONE_STACK), untrained(seed=1)]
    assert len(texts(models, SOURCES, TranslationConfig(beam=3))) == len(SOURCES)
    twice = [untrained(**ONE_STACK)] * 2
    assert texts(twice, SOURCES, TranslationConfig(beam=3)) == texts(twice[0], SOURCES, TranslationConfig(beam=3))


def test_a_translation_starts_with_its_prefix():
    found = texts(untrained(**ONE_STACK), SOURCES, TranslationConfig(beam=2), prefixes=["The fox", "", "", "", "owl"])
    assert [text.startswith(prefix) for text, prefix in zip(found, ["The fox", "", "", "", "owl"], strict=True)]


def test_learned_positions_leave_half_to_the_translation():
    member = untrained(**ONE_STACK, positions="learned", context_length=20)
    config = TranslationConfig(beam=2, max_length_ratio=100)
    (line,) = Translator([member], config).translate([" ".join(["owl fox"] * 40)])
    assert line.left_out > 0
    assert 1 <= len(line.translations[0].tokens) <= 10
    with pytest.raises(UsageError, match="the prefix of line 1 fills all of the model's positions"):
        texts(member, ["owl"], prefixes=[" ".join(["fox"] * 30)])


def test_a_coverage_penalty_needs_an_encoder():
    with pytest.raises(UsageError, match="needs a model with cross-attention"):
        Translator([untrained(**ONE_STACK)], TranslationConfig(coverage_penalty=0.2))
