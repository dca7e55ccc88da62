import random

import pytest
import torch

from lm.config.model import ModelConfig
from lm.decoding import DecodeSession
from lm.engine import plan_engines
from lm.engine.kv_cache import PrefixCache
from lm.model import DecoderOnly, build_model
from tests.lm.decoding.session.test_windows import SHAPES
from tests.lm.decoding.session_driver import SessionDriver
from tests.tolerances import assert_close

KINDS = {
    **SHAPES,
    "window": {"attention": "window", "attention_window": 5},
    "bigbird": {"attention": "bigbird", "attention_block": 2, "global_blocks": 1, "random_blocks": 1},
    "compressed": {"attention": "compressed", "attention_block": 4, "attention_stride": 2},
    "experts": {"experts": 3, "experts_per_token": 2},
    "lstm": {"architecture": "lstm"},
    "gru": {"architecture": "gru"},
}
CONTEXT = 16


def make_model(kind: str, context: int = CONTEXT) -> DecoderOnly:
    fields = {"positions": "rotary", **KINDS[kind]}
    if "architecture" in fields:
        fields.pop("positions")
    else:
        fields["n_heads"] = 4
    config = ModelConfig(vocab_size=50, context_length=context, d_model=32, n_layers=2, init_std=0.2, **fields)
    model = build_model(config, seed=1).eval()
    assert isinstance(model, DecoderOnly)
    return model


def alone(model: DecoderOnly, tokens: list[int]) -> torch.Tensor:
    """The logits after the last token, all read at once as the reference does."""
    return SessionDriver(model, cached=False).feed(torch.tensor([tokens]), last_only=True)[0, -1]


def live(steps: SessionDriver, model: DecoderOnly, *, seed: int) -> None:
    """Rows come, grow and go by chance, some far beyond the context; each has the logits that it has alone."""
    chance, rows = random.Random(seed), []
    for _ in range(12):
        if not rows or chance.random() < 0.4:
            fresh = [[chance.randrange(50) for _ in range(chance.randint(1, 20))] for _ in range(chance.randint(1, 4))]
            fresh += fresh[: chance.randint(0, 1)]  # the same once more
            found = steps.join(fresh)
            rows += [list(tokens) for tokens in fresh]
            expected = torch.stack([alone(model, tokens) for tokens in fresh])
            assert_close(found, expected, model=model)
        if chance.random() < 0.4:
            kept = sorted(chance.sample(range(len(rows)), chance.randint(1, len(rows))))
            steps.keep(kept)
            rows = [rows[place] for place in kept]
        tokens = [chance.randrange(50) for _ in rows]
        for row, token in zip(rows, tokens, strict=True):
            row.append(token)
        logits = steps.feed(torch.tensor(tokens)[:, None])
        assert logits.shape == (len(rows), 1, 50)
        expected = torch.stack([alone(model, row) for row in rows])
        assert_close(logits[:, 0], expected, model=model)


@pytest.mark.parametrize("kind", KINDS)
def test_each_row_has_the_logits_that_it_has_alone(kind):
    model = make_model(kind)
    live(SessionDriver(model), model, seed=list(KINDS).index(kind))  # a history of its own for each


@pytest.mark.parametrize("kind", ["learned", "window", "relative", "lstm", "alibi"])
def test_a_shared_prefix_changes_nothing(kind):
    model, chance = make_model(kind), random.Random(5)
    shared = [chance.randrange(50) for _ in range(6)]
    steps, prefixes = SessionDriver(model), PrefixCache(model)
    steps.session = DecodeSession(plan_engines(model), prefixes=prefixes)
    prefixes.extend(shared)
    prompts = [shared + [chance.randrange(50) for _ in range(n)] for n in (3, 1, 8)] + [shared, [7, 8], shared * 4]
    assert_close(steps.join(prompts), torch.stack([alone(model, tokens) for tokens in prompts]), model=model)
    for token in range(12):
        prompts = [[*tokens, token] for tokens in prompts]
        found = steps.feed(torch.full((len(prompts), 1), token))[:, 0]
        assert_close(found, torch.stack([alone(model, each) for each in prompts]), model=model)
