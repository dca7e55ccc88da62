"""Beam search over an encoder-decoder: refilled beams, limits and endings of each source, penalties."""

import pytest
import torch

from lm.config.decoding import SamplingConfig
from lm.decoding.batching import SampleSpec, Token, generate
from lm.decoding.beam_search import CoveragePenalty, _sources_to_keep, beam_search
from lm.decoding.sampling import Sampler, ban_repeated_ngrams
from lm.decoding.session import StepOutput
from tests.lm.decoding.encoder_decoders import END, SHAPES, START, VOCABULARY, forced, make_model, random_ids
from tests.lm.decoding.session_driver import SessionDriver, session
from tests.tolerances import approx

LENGTHS = torch.tensor([7, 3, 5, 1])
SOURCE = random_ids(4, 7)


def search(model, source=SOURCE, lengths=LENGTHS, *, stop_ids=(END,), coverage=0.0, **options):
    sources, prompts = [(source, lengths)], torch.full((len(source), 1), START)
    options = {"refill": True, "coverage": CoveragePenalty(coverage, sources) if coverage else None, **options}
    return beam_search(session(model), prompts, stop_ids=stop_ids, sources=sources, **options)


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


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("beam", [1, 3, 5])
def test_a_refilled_beam_equals_a_reference_search(beam, penalty):
    for seed in range(2):
        model, stop_ids = make_model("sinusoidal, post-norm", seed=seed), (1, 5, 9)
        found = search(model, beam_size=beam, max_tokens=9, length_penalty=penalty, stop_ids=stop_ids, n=1)
        for source, length, best in zip(SOURCE.tolist(), LENGTHS.tolist(), found, strict=True):
            expected = naive(model, source[:length], beam=beam, limit=9, penalty=penalty, stop_ids=stop_ids)
            assert best[0].tokens == expected[0][1]
            assert best[0].score == approx(expected[0][0], model=model)


@pytest.mark.parametrize("shape", SHAPES)
def test_many_sources_are_as_each_alone_and_their_scores_are_forced_ones(shape):
    model, stop_ids = make_model(shape, seed=3), (1, 2, 3, 4)
    source, lengths = random_ids(10, 9, seed=4), torch.randint(1, 10, (10,), generator=torch.Generator().manual_seed(2))
    options = {"beam_size": 4, "n": 2, "stop_ids": stop_ids, "length_penalty": 0.8}
    limits = [4 + int(length) for length in lengths]
    together = search(model, source, lengths, max_tokens=limits, **options)
    for row, (length, limit) in enumerate(zip(lengths.tolist(), limits, strict=True)):
        ids = source[row, :length]
        (alone,) = search(model, ids[None], torch.tensor([length]), max_tokens=limit, **options)
        assert [one.tokens for one in together[row]] == [one.tokens for one in alone]
        for one in together[row]:
            nats = forced(model, ids.tolist(), list(one.tokens))
            assert one.logprobs == approx(nats, model=model)
            assert one.score == approx(sum(nats) / len(nats) ** 0.8, model=model)
            assert one.finish_reason == ("end_of_text" if one.tokens[-1] in stop_ids else "length")
            assert len(one.tokens) <= limit
    assert len({len(best[0].tokens) for best in together}) > 2


def test_a_beam_of_one_is_greedy():
    model = make_model(seed=5)
    found = search(model, beam_size=1, max_tokens=12, stop_ids=(1, 2, 3))
    greedy = Sampler.from_config(SamplingConfig(greedy=True))
    rows = [SampleSpec(number, max_tokens=12) for number in range(4)]
    prompts, sources = torch.full((4, 1), START), [(SOURCE, LENGTHS)]
    events = generate(session(model), prompts, rows, greedy, sources=sources, stop_ids=(1, 2, 3))
    drawn = [[], [], [], []]
    for event in events:
        if isinstance(event, Token):
            drawn[event.row].append(event.id)
    assert [list(best[0].tokens) for best in found] == drawn
    kept = search(model, beam_size=1, max_tokens=12, stop_ids=(1, 2, 3), refill=False)
    assert [best[0].tokens for best in kept] == [best[0].tokens for best in found]


def test_a_filter_bans_tokens_without_changing_other_log_probabilities():
    model = make_model("no positions", seed=2)
    options = {"beam_size": 3, "max_tokens": 14, "stop_ids": ()}
    free = search(model, **options)
    assert any(len(set(best[0].tokens)) < 14 for best in free)
    found = search(model, filters=[lambda logits, history: ban_repeated_ngrams(logits, history.tokens, 1)], **options)
    for source, length, best in zip(SOURCE.tolist(), LENGTHS.tolist(), found, strict=True):
        assert len({START, *best[0].tokens}) == 15
        assert best[0].logprobs == approx(forced(model, source[:length], list(best[0].tokens)), model=model)


def test_no_hypotheses_if_a_filter_bans_every_token():
    found = search(make_model(), beam_size=3, max_tokens=4, filters=[lambda logits, _: logits - torch.inf])
    assert found == [[], [], [], []]


def test_what_is_added_for_an_end_decides_among_those_that_ended():
    model, stop_ids = make_model(seed=3), tuple(range(1, 12))
    plain = search(model, beam_size=6, max_tokens=8, n=6, stop_ids=stop_ids)
    covered = search(model, beam_size=6, max_tokens=8, n=6, stop_ids=stop_ids, coverage=3.0)
    for row, (source, length) in enumerate(zip(SOURCE.tolist(), LENGTHS.tolist(), strict=True)):
        assert [one.score for one in covered[row]] == sorted((one.score for one in covered[row]), reverse=True)
        for one in covered[row]:
            steps = SessionDriver(model, torch.tensor([source[:length]]), coverage=True)
            steps.feed(torch.tensor([[START, *one.tokens[:-1]]]))
            expected = sum(one.logprobs) / len(one.tokens) + 3.0 * float(steps.coverage()[0])
            assert one.score == approx(expected, model=model)
    assert [best[0].tokens for best in plain] != [best[0].tokens for best in covered]


def test_of_equal_candidates_the_lowest_ids_win_in_a_vocabulary_of_any_size():
    class Flat:
        removes_rows_for_free = is_compiled = False

        def add(self, prompts, sources, output_spec):
            return StepOutput(torch.zeros(len(prompts), 1, 3 * VOCABULARY))

        def extend(self, tokens, output_spec):
            return self.add(tokens, None, output_spec)

        def select(self, rows):
            pass

    found = beam_search(Flat(), torch.tensor([[0], [0]]), beam_size=3, max_tokens=2, n=3, refill=True)
    assert [[one.tokens for one in best] for best in found] == [[(0, 0), (0, 1), (0, 2)]] * 2


@pytest.mark.parametrize(
    ("going", "done", "kept"),
    [(8, 0, 8), (7, 1, 8), (14, 2, 16), (6, 2, 8), (13, 3, 16), (8, 2, 8), (9, 7, 16), (0, 8, 0)],
)
def test_rows_move_when_more_than_an_eighth_of_the_sources_are_done_and_then_to_a_multiple_of_eight(going, done, kept):
    flags = [True] * done + [False] * going
    found = _sources_to_keep(flags, at_once=False).tolist()
    assert len(found) == kept
    assert found == sorted(found)
    assert {*range(done, done + going)} <= {*found}
    assert _sources_to_keep(flags, at_once=True).tolist() == [*range(done, done + going)]
