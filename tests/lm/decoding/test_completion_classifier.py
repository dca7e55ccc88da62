"""A decoder ranks labels by the sum of the log-probabilities of their tokens, the end of the example included."""

import numpy as np
import pytest
import torch

from lm.config.run_config import END_OF_TEXT, TokenizerConfig
from lm.decoding.classifier import Classifier
from lm.tokenizer import training
from lm.tokenizer.chat_template import build_example_frame
from tests.lm.evaluation.small_models import BPE, CONTEXT, TEXT, make_model
from tests.tolerances import assert_close

CHAR = training.train([TEXT], TokenizerConfig(kind="char"), corpus_bytes=1, special_tokens=(END_OF_TEXT,))
JOY, JOYFUL, FOX, OWL = "\njoy", "\njoyful", "\nthe fox", "\nowl"
TEXTS = ["The owl saw", "", "the mill ran past the fox and the owl and 狐 ran past it", "said"]


def log_probability(model, tokenizer, text, completion, longest) -> float:
    """One forward pass in float64 for each token, without a cache or padding."""
    frame = build_example_frame(tokenizer)
    ids = [*tokenizer.encode(completion), *frame.after]
    room = CONTEXT + 1 - len(frame.before) - longest
    read = list(tokenizer.encode(text))
    read, total = [*frame.before, *read[max(0, len(read) - room) :]], 0.0
    for token in ids:
        with torch.no_grad():
            total += model(torch.tensor([read]))[0, -1].log_softmax(-1)[token].item()
        read.append(token)
    return total


def expected(model, tokenizer, completions) -> np.ndarray:
    """(texts, labels) log-probabilities, normalised over the labels."""
    longest = max(len(tokenizer.encode(each)) + 1 for each in completions)
    model.double()
    scores = np.array(
        [[log_probability(model, tokenizer, text, each, longest) for each in completions] for text in TEXTS]
    )
    model.float()
    return scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("tokenizer", "completions"),
    [(BPE, (FOX, JOY, JOYFUL, OWL)), (BPE, ("yes", "no", " the")), (CHAR, (" ran", "\nran", "\nfox", "said"))],
)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_probabilities_are_those_of_one_token_after_another(completions, batch_size, tokenizer):
    model = make_model(tokenizer.vocab_size)
    classifier = Classifier(model, tokenizer, completions, batch_size)
    found = list(classifier.classify(TEXTS))
    wanted = expected(model, tokenizer, completions)
    assert [each.text for each in found] == TEXTS
    for each, row in zip(found, wanted, strict=True):
        assert sum(each.probabilities.values()) == pytest.approx(1)
        assert list(each.probabilities.values()) == sorted(each.probabilities.values(), reverse=True)
        assert each.label == classifier.labels[int(row.argmax())]
        by_label = [each.probabilities[label] for label in classifier.labels]
        assert_close(np.log(by_label), row, model=model, dtype=torch.float32, scale=100.0)
