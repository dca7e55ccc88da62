import random

import pytest
import torch

from lm.config.decoding import SamplingConfig
from lm.decoding.batching import Request, SampleSpec, Token, generate, generate_with_continuous_batching
from lm.decoding.sampling import Sampler
from lm.errors import UsageError
from tests.lm.decoding.session_driver import session
from tests.lm.decoding.test_static_batching import collected, make_model
from tests.tolerances import assert_close

STOPS = {1, 2, 5}
SETTINGS = {
    "greedy": {"greedy": True},
    "drawn": {"temperature": 1.0, "seed": 4},
    "everything": {
        "temperature": 0.9, "top_k": 30, "top_p": 0.95, "min_p": 0.001, "typical": 0.98, "repetition_penalty": 1.3,
        "presence_penalty": 0.3, "frequency_penalty": 0.2, "no_repeat_ngram": 2, "seed": 9,
    },
    "greedy with penalties": {"greedy": True, "repetition_penalty": 1.4, "no_repeat_ngram": 3},
}  # fmt: skip

KINDS = {
    "learned": {},
    "rotary": {"positions": "rotary", "n_kv_heads": 2},
    "window": {"attention": "window", "attention_window": 4},
}


def make_requests(n: int, *, longest: int = 24, most: int = 20) -> list[Request]:
    chance = random.Random(n)
    prompts = [[chance.randrange(60) for _ in range(chance.randint(1, longest))] for _ in range(n)]
    return [Request(prompt, SampleSpec(number, chance.randint(1, most))) for number, prompt in enumerate(prompts)]


def alone(model, request: Request, sampler: Sampler):
    """What follows a prompt that is by itself, all read again each time."""
    steps = session(model, cached=False)
    return collected(generate(steps, torch.tensor([request.prompt]), [request.spec], sampler, stop_ids=STOPS))


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_continuations_do_not_depend_on_the_batch(settings, kind):
    model, sampler = make_model(context=32, **KINDS[kind]), Sampler.from_config(SamplingConfig(**SETTINGS[settings]))
    asked = make_requests(14)
    found = collected(generate_with_continuous_batching(session(model), asked, sampler, batch_size=5, stop_ids=STOPS))
    for request in asked:
        expected = alone(model, request, sampler)
        number = request.spec.number
        assert found[0][number] == expected[0][number]
        assert found[2][number] == expected[2][number]
        assert_close(torch.tensor(found[1][number]), torch.tensor(expected[1][number]), model=model)
    assert settings != "drawn" or set(found[2].values()) == {"length", "end_of_text"}


def test_there_are_never_more_rows_than_asked_for_and_hardly_fewer_while_others_wait():
    model, sampler = make_model(context=64), Sampler.from_config(SamplingConfig(greedy=True))
    live: set[int] = set()
    sizes, asked = [], make_requests(40)
    for event in generate_with_continuous_batching(session(model), asked, sampler, batch_size=8):
        if isinstance(event, Token):
            live.add(event.row)
            sizes.append(len(live))
        else:
            live.remove(event.row)
    assert max(sizes) == 8
    assert not live


def test_requests_are_consumed_only_when_there_is_room():
    taken = []

    def requests():
        for request in make_requests(20):
            taken.append(request)
            yield request

    events = generate_with_continuous_batching(
        session(make_model()), requests(), Sampler.from_config(SamplingConfig(greedy=True)), batch_size=4
    )
    next(events)
    assert len(taken) == 4


def test_no_requests_are_no_events():
    assert list(generate_with_continuous_batching(session(make_model()), [], Sampler(), batch_size=4)) == []


def test_a_row_may_have_a_stream_of_its_own():
    model, sampler = make_model(), Sampler.from_config(SamplingConfig(temperature=1.0, seed=1))
    rows = [
        SampleSpec(0, 10),
        SampleSpec(1, 10, rng=sampler.rng(0)),
        SampleSpec(2, 10, rng=sampler.rng(0, seed=8)),
    ]
    tokens, _, _ = collected(
        generate_with_continuous_batching(session(model), [Request([3, 4], row) for row in rows], sampler, batch_size=3)
    )
    assert tokens[0] == tokens[1] != tokens[2]


def test_a_sampler_that_rules_out_every_token_is_a_usage_error():
    sampler = Sampler.from_config(SamplingConfig(greedy=True), {(token,): -torch.inf for token in range(60)})
    with pytest.raises(UsageError, match="every token is banned"):
        list(generate_with_continuous_batching(session(make_model()), make_requests(2), sampler, batch_size=2))
