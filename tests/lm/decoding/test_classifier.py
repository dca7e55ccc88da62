"""Labels are those of the model's softmax, whatever is read beside a text."""

import pytest
import torch

from lm.decoding.classifier import Classifier
from tests.lm.decoding.masked_models import make_model, make_tokenizer
from tests.tolerances import approx

LABELS = ("anger", "joy", "surprise")
TEXTS = ["A cup of tea", "", "Über 狐, a cup", "owl " * 50]


@pytest.mark.parametrize("kind", ["bpe", "char"])
@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_labels_are_ranked_by_a_softmax_over_the_first_part_of_a_text(kind, batch_size):
    tokenizer = make_tokenizer(kind)
    model = make_model(tokenizer, labels=LABELS)
    found = list(Classifier(model, tokenizer, batch_size).classify(TEXTS))
    assert [each.text for each in found] == TEXTS
    for each in found:
        ids = [tokenizer.start_of_text, *tokenizer.encode(each.text)[:30], tokenizer.end_of_text]
        with torch.inference_mode():
            shares = model(torch.tensor([ids]))[0, 0].softmax(-1).tolist()
        assert dict(each.probabilities) == approx(dict(zip(LABELS, shares, strict=True)), model=model)
        ranked = list(each.probabilities.values())
        assert ranked == sorted(ranked, reverse=True)
        assert each.label == LABELS[shares.index(max(shares))]
