"""What holds of the translations of every kind of model: encoder-decoders, one stack, recurrent, compressed."""

from __future__ import annotations

import pytest
import torch

from lm.config.decoding import TranslationConfig
from lm.decoding.translation import Translator
from lm.errors import UsageError
from lm.tokenizer.special_tokens import build_pair_frames
from tests.lm.decoding.test_translation import texts, untrained
from tests.tolerances import approx

SOURCES = ["The owl saw the fox.", "by the mill", "", "sang the owl and the fox ran by the mill", "fox"]
ONE_STACK = {"n_encoder_layers": 0, "n_layers": 2, "decoder_only": True}
MODELS = {
    "encoder-decoder": {},
    **{f"decoder-only, {name}": {**ONE_STACK, "positions": name}
       for name in ("rotary", "learned", "relative", "sinusoidal", "t5")},
    "decoder-only, compressed": {**ONE_STACK, "n_layers": 1, "attention": "compressed", "attention_block": 4},
    "lstm": {"architecture": "lstm", "n_heads": 4},
    "gru without attention": {"architecture": "gru", "recurrent_attention": "none", "n_heads": 4},
    "gru, additive": {"architecture": "gru", "recurrent_attention": "additive", "n_heads": 4},
}  # fmt: skip
each_model = pytest.mark.parametrize("fields", MODELS.values(), ids=MODELS)


def greedy(member, source: str, count: int) -> list[int]:
    """The most likely tokens, one after the other, each time with everything before read again."""
    frames = build_pair_frames(member.tokenizer, member.source_tokenizer)
    read, tokens = frames.source.wrap(member.source_tokenizer.encode(source)).tolist(), [frames.start]
    for _ in range(count):
        one_stack = member.model.config.decoder_only
        inputs = [torch.tensor([[*read, *tokens]])] if one_stack else [torch.tensor([read]), torch.tensor([tokens])]
        tokens.append(int(member.model(*inputs)[0, -1].argmax()))
    return tokens[1:]


@each_model
def test_a_beam_of_one_is_greedy(fields):
    member = untrained(**fields)
    for line in Translator([member], TranslationConfig(beam=1)).translate(filter(None, SOURCES)):
        tokens = list(line.translations[0].tokens)
        assert tokens == greedy(member, line.source, len(tokens))


@each_model
@pytest.mark.parametrize("beam", [1, 3])
def test_batches_change_no_translation_and_no_score(fields, beam):
    member = untrained(**fields)
    together, alone = (
        list(Translator([member], TranslationConfig(beam=beam, batch_tokens=size)).translate(SOURCES))
        for size in (1024, 1)
    )
    for left, right in zip(together, alone, strict=True):
        assert left.translations[0].tokens == right.translations[0].tokens
        assert left.translations[0].score == approx(right.translations[0].score, model=member.model)


@each_model
def test_any_two_kinds_of_model_are_an_ensemble(fields):
    models = [untrained(**fields), untrained(seed=1)]
    assert len(texts(models, SOURCES, TranslationConfig(beam=3))) == len(SOURCES)


def test_an_ensemble_of_one_model_twice_translates_as_it_does_alone():
    member, config = untrained(**ONE_STACK), TranslationConfig(beam=3)
    assert texts([member] * 2, SOURCES, config) == texts(member, SOURCES, config)


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


@pytest.mark.parametrize("name", ["decoder-only, rotary", "gru without attention"])
def test_a_coverage_penalty_needs_cross_attention(name):
    config = TranslationConfig(coverage_penalty=0.2)
    with pytest.raises(UsageError, match="needs a model with cross-attention"):
        Translator([untrained(**MODELS[name])], config)
    assert texts(untrained(**MODELS["lstm"]), SOURCES, config)
