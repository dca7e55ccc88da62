"""Beam search over an encoder-decoder: refilled beams, limits and endings of each source, penalties."""

import pytest
import torch

from lm.decoding.beam_search import beam_search
from tests.lm.decoding.encoder_decoders import END, SHAPES, START, forced, make_model, random_ids
from tests.lm.decoding.session_driver import session
from tests.tolerances import approx

LENGTHS = torch.tensor([7, 3, 5, 1])
SOURCE = random_ids(4, 7)


def search(model, source=SOURCE, lengths=LENGTHS, **options):
    prompts = torch.full((len(source), 1), START)
    return beam_search(session(model), prompts, refill=True, sources=(source, lengths), **options)


def naive(model, source, *, beam, limit, penalty, stop_ids=(END,)):
    """The search of fairseq and CTranslate2 for one source, all read again at each step in float64."""
    model = model.double()
    live, finished = [((), 0.0)], []
    for length in range(1, limit + 1):
        begun = torch.tensor([[START, *tokens] for tokens, _ in live])
        with torch.no_grad():
            values = model(torch.tensor([source] * len(live)), begun)[:, -1].log_softmax(-1).tolist()
        candidates = [
            (total + value, (*tokens, token))
            for (tokens, total), row in zip(live, values, strict=True)
            for token, value in enumerate(row)
        ]
        candidates.sort(key=lambda one: -one[0])
        ended = [one for one in candidates[:beam] if one[1][-1] in stop_ids]
        finished += [(total / length**penalty, tokens) for total, tokens in ended]
        live = [(tokens, total) for total, tokens in candidates if tokens[-1] not in stop_ids][:beam]
        if len(finished) >= beam:
            break
    else:
        finished += [(total / limit**penalty, tokens) for tokens, total in live]
    model.float()
    return sorted(finished, reverse=True)


@pytest.mark.parametrize("penalty", [0.0, 0.6])
@pytest.mark.parametrize("beam", [1, 3, 5])
def test_a_refilled_beam_equals_a_reference_search(beam, penalty):
    model, stop_ids = make_model("sinusoidal, post-norm"), (1, 5, 9)
    found = search(model, beam_size=beam, max_tokens=[9] * 4, length_penalty=penalty, stop_ids=stop_ids, n=1)
    for source, length, best in zip(SOURCE.tolist(), LENGTHS.tolist(), found, strict=True):
        expected = naive(model, source[:length], beam=beam, limit=9, penalty=penalty, stop_ids=stop_ids)
        assert tuple(best[0].tokens) == expected[0][1]
        assert best[0].score == approx(expected[0][0], model=model)


@pytest.mark.parametrize("shape", SHAPES)
def test_many_sources_are_as_each_alone_and_their_scores_are_forced_ones(shape):
    model, stop_ids = make_model(shape, seed=3), (1, 2, 3, 4)
    source, lengths = random_ids(5, 9, seed=4), torch.randint(1, 10, (5,), generator=torch.Generator().manual_seed(2))
    options = {"beam_size": 4, "n": 2, "stop_ids": stop_ids, "length_penalty": 0.8}
    limits = [4 + int(length) for length in lengths]
    together = search(model, source, lengths, max_tokens=limits, **options)
    for row, (length, limit) in enumerate(zip(lengths.tolist(), limits, strict=True)):
        ids = source[row, :length]
        (alone,) = search(model, ids[None], torch.tensor([length]), max_tokens=[limit], **options)
        assert [one.tokens for one in together[row]] == [one.tokens for one in alone]
        for one in together[row]:
            nats = forced(model, ids.tolist(), list(one.tokens))
            assert one.logprobs == approx(nats, model=model)
            assert one.score == approx(sum(nats) / len(nats) ** 0.8, model=model)
            assert one.finish_reason == ("end_of_text" if one.tokens[-1] in stop_ids else "length")
            assert len(one.tokens) <= limit
    assert len({len(best[0].tokens) for best in together}) > 2
