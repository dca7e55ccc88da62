"""Maps on words are sums and means of the weights on tokens, whatever the tokens are."""

import numpy as np
import pytest
import torch

from lm.config.model import ModelConfig
from lm.decoding.translation import TranslationModel
from lm.evaluation.attention import AttentionMap, Axis, compute_attention, compute_translation_attention
from lm.model.attention import capture_attention_weights
from lm.model.transformer import build_model
from tests.cli.small_runs import make_tokenizer
from tests.lm.evaluation.small_models import loaded
from tests.tolerances import assert_close

TEXT = "The owl saw  Über den 狐\tfoxes "

WORDS = ("The", "owl", "saw", "Über", "den", "狐", "foxes")


def small_model(tokenizer, **fields):
    shape = {"context_length": 64, "d_model": 32, "n_layers": 2, "n_heads": 2, "init_std": 0.3, **fields}
    return build_model(ModelConfig(vocab_size=tokenizer.vocab_size, **shape), seed=3).eval()


def word_of(text, position):
    """The word that the byte at a position is in, or that comes after it."""
    spans, at = [], 0
    for word in text.split():
        at = text.index(word, at)
        spans.append((len(text[:at].encode()), len(text[: at + len(word)].encode())))
        at += len(word)
    return next((number for number, (_, end) in enumerate(spans) if position < end), len(spans) - 1)


@pytest.mark.parametrize("kind", ["bpe", "char", "byte"])
def test_tokens_belong_to_the_words_they_begin_or_precede(kind):
    tokenizer = make_tokenizer(kind)
    text = TEXT if kind != "char" else TEXT.replace("\t", " ")
    axis = Axis.of_text(tokenizer, text, "words")
    assert (axis.labels, axis.words) == (WORDS, (*range(len(WORDS)),))
    assert axis.tokens == (*tokenizer.encode(text),)
    starts = np.cumsum([0] + [len(tokenizer.token_bytes(index)) for index in axis.tokens])
    assert axis.units == tuple(word_of(text, int(start)) for start in starts[:-1])
    assert Axis.of_tokens(tokenizer, axis.tokens, "words").units == axis.units


def by_loop(tokens, queries, keys):
    """(heads, query tokens, key tokens) -> (heads, query words, key words), one number at a time."""
    merged = np.zeros((len(tokens), len(queries.labels), len(keys.labels)))
    for head, weights in enumerate(tokens):
        for row in range(len(queries.labels)):
            members = [i for i, unit in enumerate(queries.units) if unit == row]
            for column in range(len(keys.labels)):
                shares = [
                    sum(float(weights[i, j]) for j, unit in enumerate(keys.units) if unit == column) for i in members
                ]
                merged[head, row, column] = sum(shares) / len(shares)
    return merged


def test_self_attention_of_words_is_summed_and_averaged():
    tokenizer = make_tokenizer("bpe")
    model = small_model(tokenizer, n_kv_heads=1, qk_norm=True)
    found = compute_attention(loaded(model, tokenizer), TEXT)
    axis = found.queries
    assert found.weights.shape == (2, 2, 8, 8)
    assert_close(found.weights.sum(-1), 1, model=model, dtype=torch.float32)
    assert (np.triu(found.weights, 1) == 0).all()
    with capture_attention_weights(model.decoder.attention_layers()) as layers:
        model(torch.tensor([axis.tokens]))
    for weights, layer in zip(found.weights, layers, strict=True):
        assert_close(weights, by_loop(layer[0].detach(), axis, axis), model=model, dtype=torch.float32)
    np.testing.assert_allclose(found.mean(), found.weights.mean((0, 1)))
    np.testing.assert_allclose(found.mean(layer=2), found.weights[1].mean(0))
    np.testing.assert_allclose(found.mean(layer=1, head=2), found.weights[0, 1])


def test_cross_attention_is_of_the_step_that_predicts():
    tokenizer = make_tokenizer("bpe")
    model = small_model(tokenizer, n_encoder_layers=1)
    end = tokenizer.end_of_text
    target = tokenizer.encode("the fox ran")
    for tokens in (target, [*target, end]):
        found = compute_translation_attention(
            TranslationModel(model, tokenizer, tokenizer), "The owl 狐", tokens, unit="tokens", to=None
        )
        source = torch.tensor([[*tokenizer.encode("The owl 狐"), end]])
        with capture_attention_weights(model.decoder.attention_layers(cross=True)) as layers:
            model(source, torch.tensor([[end, *target]]))
        assert_close(found.weights, torch.cat(layers).detach().numpy(), model=model, dtype=torch.float32)
        assert found.queries.labels[-1] == found.keys.labels[-1] == "</s>"
        assert not found.is_causal


def test_without_an_encoder_a_translation_looks_at_its_source_and_what_comes_before():
    tokenizer = make_tokenizer("bpe")
    model = small_model(tokenizer, decoder_only=True, positions="rotary")
    end, source, target = tokenizer.end_of_text, tokenizer.encode("The owl 狐"), tokenizer.encode("the fox ran")
    for tokens in (target, [*target, end]):
        found, words = (
            compute_translation_attention(
                TranslationModel(model, tokenizer, tokenizer), "The owl 狐", tokens, unit=unit, to=None
            )
            for unit in ("tokens", "words")
        )
        with capture_attention_weights(model.decoder.attention_layers()) as layers:
            model(torch.tensor([[*source, end, end, *target]]))
        expected = torch.cat(layers).detach().numpy()[:, :, len(source) + 1 :]
        assert_close(found.weights, expected, model=model, dtype=torch.float32)
        assert_close(words.weights.sum(-1), 1, model=model, dtype=torch.float32)
        assert words.queries.labels == ("the", "fox", "ran", "</s>")
        assert words.keys.labels == ("The", "owl", "狐", "</s>", "<s>", "the", "fox", "ran")
        assert words.keys.words == (0, 1, 2, *[None] * 5)
        assert {pair[1] for pair in words.alignments()} == {0, 1, 2}


def test_alignments_are_the_words_attended_to_most():
    source = Axis((1, 2, 3, 4), (0, 1, 2, 3), ("<2de>", "a", "b", "</s>"), (None, 0, 1, None))
    target = Axis((5, 6, 7, 8), (0, 1, 2, 3), ("x", "y", "z", "</s>"), (0, 1, 2, None))
    rows = [[0.1, 0.2, 0.6, 0.1], [0.7, 0.2, 0.05, 0.05], [0.1, 0.3, 0.4, 0.2], [0, 0, 0, 1]]
    found = AttentionMap("cross", target, source, np.array([[rows]], dtype=np.float32))
    assert found.alignments() == [(0, 1), (1, 0), (1, 2)]
    assert found.pharaoh() == "0-1 1-0 1-2"
