"""Given translations are scored as teacher forcing scores each alone, whatever the batch."""

import math

import numpy as np
import pytest
import torch

from lm.config.model import ModelConfig
from lm.evaluation.pair_scoring import PairEncoder, score_pairs, score_pairs_streaming
from lm.model.transformer import build_model
from lm.text.records import Record
from tests.cli.small_runs import make_tokenizer
from tests.tolerances import approx, assert_close

PAIRS = [
    Record.of_pair("The owl saw the fox.", "Über den Bäumen sang 狐 the owl — and the fox ran.", line=1),
    Record.of_pair("The", "fox", line=2),
    Record.of_pair("", "", line=3),
    Record.of_pair("sang 狐 the owl — and the fox ran over the mill and back again", "the", line=4),
    Record.of_pair("The owl", "", line=5),
    Record.of_pair("The owl", "The owl", line=6),
]

ONE_STACK = {"n_encoder_layers": 0, "decoder_only": True}


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer("bpe")


def make_model(tokenizer, **fields):
    shape = {"context_length": 64, "d_model": 32, "n_layers": 2, "n_encoder_layers": 1, "n_heads": 2, "init_std": 0.3}
    return build_model(ModelConfig(vocab_size=tokenizer.vocab_size, **{**shape, **fields}), seed=3).eval()


def alone(model, tokenizer, pair):
    """Nats of a pair, one softmax at a time in float64, without padding."""
    end = tokenizer.end_of_text
    source = torch.tensor([[*tokenizer.encode(pair.source), end]])
    target = [*tokenizer.encode(pair.text), end]
    read = torch.tensor([[end, *target[:-1]]])
    if model.config.decoder_only:
        logits = model(torch.cat((source, read), dim=1))[0, source.shape[1] :].detach().double().numpy()
    else:
        logits = model(source, read)[0].detach().double().numpy()
    return [math.log(np.exp(row).sum()) - row[index] for row, index in zip(logits, target, strict=True)]


@pytest.mark.parametrize("batch_tokens", [1, 40, 100_000])
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "learned"])
@pytest.mark.parametrize("fields", [{}, ONE_STACK], ids=["encoder-decoder", "decoder-only"])
def test_each_pair_scores_as_it_does_alone(tokenizer, batch_tokens, positions, fields):
    model = make_model(tokenizer, positions=positions, **fields)
    encoder = PairEncoder(tokenizer)
    scored = score_pairs(model, encoder.encode(PAIRS), batch_tokens=batch_tokens)
    for pair, nats in zip(PAIRS, scored, strict=True):
        assert_close(nats, alone(model, tokenizer, pair), model=model, dtype=torch.float32)


def test_sums_are_of_all_pairs_but_those_with_a_blank_side(tokenizer):
    model = make_model(tokenizer)
    *_, last = score_pairs_streaming(model, PairEncoder(tokenizer), iter(PAIRS), name="test")
    whole = [PAIRS[place] for place in (0, 1, 3, 5)]
    expected = [nats for pair in whole for nats in alone(model, tokenizer, pair)]
    assert last.blank == 2
    assert last.result.documents == 4
    assert last.result.tokens == sum(len(tokenizer.encode(pair.text)) + 1 for pair in whole)
    assert last.result.nats == approx(sum(expected), model=model)
    assert last.result.words == sum(len(pair.text.split()) for pair in whole)
    assert last.result.bytes == sum(len(pair.text.encode()) for pair in whole)


def test_source_and_target_may_have_vocabularies_of_their_own(tokenizer):
    of_source = make_tokenizer("byte")
    model = make_model(tokenizer, source_vocab_size=of_source.vocab_size)
    found = PairEncoder(tokenizer, of_source).encode(PAIRS[:1])
    assert found.sources.row(0).tolist() == [*of_source.encode(PAIRS[0].source), of_source.end_of_text]
    assert found.targets.row(0).tolist() == [*tokenizer.encode(PAIRS[0].text), tokenizer.end_of_text]
    assert np.isfinite(score_pairs(model, found)[0]).all()
