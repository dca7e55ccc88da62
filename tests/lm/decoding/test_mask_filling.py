"""Blanks are guessed as the model's softmax has it, whatever is read beside them."""

import pytest
import torch

from lm.decoding.classifier import fill_masks
from tests.lm.decoding.masked_models import make_model, make_tokenizer
from tests.tolerances import approx

TEXTS = ["A [MASK] of tea", "[MASK] and [MASK], the [MASK].", "no blank", "[MASK]", "Über [MASK]"]


@pytest.mark.parametrize("kind", ["bpe", "char", "byte"])
@pytest.mark.parametrize("batch_size", [2, 16])
def test_candidates_are_the_most_probable_tokens(kind, batch_size):
    tokenizer = make_tokenizer(kind)
    model = make_model(tokenizer)
    found = list(fill_masks(model, tokenizer, TEXTS, k=4, batch_size=batch_size))
    assert [filled.text for filled in found] == TEXTS
    for filled in found:
        ids = [tokenizer.start_of_text, *tokenizer.encode(filled.text, parse_special=True), tokenizer.end_of_text]
        with torch.inference_mode():
            shares = model(torch.tensor([ids]))[0].softmax(-1)
        blanks = [place for place, index in enumerate(ids) if index == tokenizer.mask]
        for place, guesses in zip(blanks, filled.blanks, strict=True):
            best = shares[place].topk(4)
            assert [guess.id for guess in guesses] == best.indices.tolist()
            assert [guess.probability for guess in guesses] == approx(best.values.tolist(), model=model)
            assert guesses[0].text == tokenizer.token_bytes(guesses[0].id).decode(errors="replace")
            ids[place] = guesses[0].id
        assert filled.filled == tokenizer.decode(ids[1:-1], skip_special=False)
