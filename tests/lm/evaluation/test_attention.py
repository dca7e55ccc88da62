"""Maps on words are sums and means of the weights on tokens, whatever the tokens are."""

import itertools

import numpy as np
import pytest
import torch

from lm.config.model import ModelConfig
from lm.errors import UsageError
from lm.evaluation.attention import AttentionMap, Unit, compute_attention, text_units, token_units
from lm.model import build_model
from lm.model.attention import capture_attention_weights
from tests.cli.small_runs import make_tokenizer
from tests.lm.evaluation.small_models import loaded
from tests.tolerances import assert_close

TEXT = "The owl saw  Über den 狐\tfoxes "
WORDS = ["The", "owl", "saw", "Über", "den", "狐", "foxes"]


def small_model(tokenizer, **fields):
    shape = {"context_length": 64, "d_model": 32, "n_layers": 2, "n_heads": 2, "init_std": 0.3, **fields}
    return build_model(ModelConfig(vocab_size=tokenizer.vocab_size, **shape), seed=3).eval()


@pytest.mark.parametrize("kind", ["bpe", "char", "byte"])
def test_tokens_belong_to_the_words_they_begin_or_precede(kind):
    tokenizer = make_tokenizer(kind)
    text = TEXT if kind != "char" else TEXT.replace("\t", " ")
    units, tokens = text_units(tokenizer, text, "words"), tokenizer.encode(text)
    assert [(unit.label, unit.number) for unit in units] == [(word, number) for number, word in enumerate(WORDS)]
    assert [token for unit in units for token in unit.tokens] == tokens
    assert token_units(tokenizer, tokens, "words") == units
    assert b"".join(map(tokenizer.token_bytes, units[3].tokens)).strip().decode() == WORDS[3]


def by_loop(tokens, queries, keys):
    """(heads, query tokens, key tokens) -> (heads, query words, key words), one number at a time."""
    places = []
    for units in (queries, keys):
        ends = np.cumsum([0, *(len(unit.tokens) for unit in units)])
        places.append([range(start, end) for start, end in itertools.pairwise(ends)])
    return [
        [[sum(float(head[i, j]) for i in row for j in column) / len(row) for column in places[1]] for row in places[0]]
        for head in tokens
    ]


def test_self_attention_of_words_is_summed_and_averaged():
    tokenizer = make_tokenizer("bpe")
    model = small_model(tokenizer, n_kv_heads=1, qk_norm=True)
    found = compute_attention(loaded(model, tokenizer), TEXT)
    assert found.weights.shape == (2, 2, 8, 8)
    assert_close(found.weights.sum(-1), 1, model=model, dtype=torch.float32)
    assert (np.triu(found.weights, 1) == 0).all()
    with capture_attention_weights(model.decoder.attention_layers()) as layers:
        model(torch.tensor([[tokenizer.start_of_text, *tokenizer.encode(TEXT)]]))
    for weights, layer in zip(found.weights, layers, strict=True):
        expected = by_loop(layer[0].detach(), found.queries, found.keys)
        assert_close(weights, np.array(expected), model=model, dtype=torch.float32)
    np.testing.assert_allclose(found.mean(layer=2), found.weights[1].mean(0))
    np.testing.assert_allclose(found.mean(layer=1, head=2), found.weights[0, 1])
    for number in (0, 9, -1):
        with pytest.raises(UsageError, match=f"head {number}: there are"):
            found.mean(head=number)


@pytest.mark.parametrize("shape", [{"n_encoder_layers": 1}, {"decoder_only": True, "positions": "rotary"}])
def test_attention_of_a_translation_is_of_the_step_that_predicts(shape):
    tokenizer = make_tokenizer("bpe")
    model, end = small_model(tokenizer, **shape), tokenizer.end_of_text
    source, target = (tokenizer.encode(text) for text in ("The owl 狐", "the fox ran"))
    read, written = torch.tensor([[*source, end]]), torch.tensor([[end, *target]])
    with capture_attention_weights(model.decoder.attention_layers(cross="n_encoder_layers" in shape)) as layers:
        if "n_encoder_layers" in shape:
            model(read, written)
        else:
            model(torch.cat((read, written), dim=1))
    expected = torch.cat(layers).detach().numpy()[:, :, -len(target) - 1 :]
    for tokens in (target, [*target, end]):
        found, words = (
            compute_attention(loaded(model, tokenizer), "The owl 狐", tokens, unit=unit) for unit in ("tokens", "words")
        )
        assert_close(found.weights, expected, model=model, dtype=torch.float32)
        assert_close(words.weights.sum(-1), 1, model=model, dtype=torch.float32)
        assert [unit.label for unit in words.queries] == ["the", "fox", "ran", "</s>"]
        earlier = [] if "n_encoder_layers" in shape else ["<s>", "the", "fox", "ran"]
        assert [unit.label for unit in words.keys] == ["The", "owl", "狐", "</s>", *earlier]
        assert [unit.number for unit in words.keys] == [0, 1, 2, None, *[None] * len(earlier)]
        assert {pair[1] for pair in words.alignments()} == {0, 1, 2}


def test_alignments_are_the_words_attended_to_most():
    numbers = [[None, 0, 1, None], [0, 1, 2, None]]
    source, target = ([Unit("", (place,), number) for place, number in enumerate(own)] for own in numbers)
    rows = [[0.1, 0.2, 0.6, 0.1], [0.7, 0.2, 0.05, 0.05], [0.1, 0.3, 0.4, 0.2], [0, 0, 0, 1]]
    found = AttentionMap("cross", target, source, np.array([[rows]], dtype=np.float32), ("", ""))
    assert found.alignments() == [(0, 1), (1, 0), (1, 2)]
    assert found.pharaoh() == "0-1 1-0 1-2"
