import torch

from tests.lm.decoding.encoder_decoders import VOCABULARY, make_model, random_ids, uncached
from tests.lm.decoding.session_driver import SessionDriver
from tests.tolerances import assert_close

LENGTHS = torch.tensor([7, 3, 1])


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
    alone = SessionDriver(models[:1], source, LENGTHS).feed(tokens)
    assert_close(alone.softmax(-1), probabilities[0], model=models[0])


def test_vocabularies_may_be_padded_to_different_sizes():
    source, tokens = random_ids(3, 7), random_ids(3, 5, seed=1)
    models = [make_model(seed=1), make_model(seed=2, vocab_size=VOCABULARY + 8)]
    probabilities = [uncached(model, source, LENGTHS, tokens).double().softmax(-1) for model in models]
    expected = (probabilities[0] + probabilities[1][..., :VOCABULARY]) / 2
    for order in (models, models[::-1]):
        found = SessionDriver(order, source, LENGTHS).feed(tokens)
        assert_close(found.exp(), expected, model=models[0])
