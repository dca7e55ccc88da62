"""Blanks are guessed as the model's softmax has it, whatever is read beside them."""

import pytest
import torch

from lm.decoding.mask_filling import MaskFiller
from tests.lm.decoding.masked_models import make_model, make_tokenizer
from tests.tolerances import approx

TEXTS = ["A [MASK] of tea", "[MASK] and [MASK], the [MASK].", "no blank", "[MASK]", "Über [MASK]"]


@pytest.fixture(scope="module", params=["bpe", "char", "byte"])
def tokenizer(request):
    return make_tokenizer(request.param)


def test_candidates_are_the_most_probable_tokens(tokenizer):
    model = make_model(tokenizer)
    (filled,) = MaskFiller(model, tokenizer).fill([TEXTS[1]], k=4)
    ids = [tokenizer.start_of_text, *tokenizer.encode(TEXTS[1], parse_special=True), tokenizer.end_of_text]
    with torch.inference_mode():
        shares = model(torch.tensor([ids]))[0].softmax(-1)
    blanks = [place for place, index in enumerate(ids) if index == tokenizer.mask]
    assert len(filled.blanks) == len(blanks) == 3
    for place, guesses in zip(blanks, filled.blanks, strict=True):
        best = shares[place].topk(4)
        assert [guess.id for guess in guesses] == best.indices.tolist()
        assert [guess.probability for guess in guesses] == approx(best.values.tolist(), model=model)
        assert [guess.text for guess in guesses] == [
            tokenizer.token_bytes(index).decode(errors="replace") for index in best.indices.tolist()
        ]


@pytest.mark.parametrize("batch_size", [1, 2, 16])
def test_batched_equals_single(tokenizer, batch_size):
    model = make_model(tokenizer)
    together = list(MaskFiller(model, tokenizer, batch_size).fill(TEXTS, k=3))
    for text, filled in zip(TEXTS, together, strict=True):
        (alone,) = MaskFiller(model, tokenizer).fill([text], k=3)
        assert (alone.text, alone.filled) == (filled.text, filled.filled)
        for one, other in zip(alone.blanks, filled.blanks, strict=True):
            assert [guess.id for guess in one] == [guess.id for guess in other]
            assert [g.probability for g in one] == approx([g.probability for g in other], model=model)


def test_a_filled_text_has_the_best_candidate_for_each_mask(tokenizer):
    (filled, unchanged) = list(MaskFiller(make_model(tokenizer), tokenizer).fill([TEXTS[0], "no blank"], k=1))
    ids = tokenizer.encode(TEXTS[0], parse_special=True)
    ids[ids.index(tokenizer.mask)] = filled.blanks[0][0].id
    assert filled.filled == tokenizer.decode(ids, skip_special=False)
    assert (unchanged.filled, unchanged.blanks) == ("no blank", ())
