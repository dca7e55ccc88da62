import pytest
import torch

from lm.benchmark import generation
from lm.config.model import ModelConfig
from lm.hardware import Hardware

CPU = Hardware("cpu", "float32", torch.get_num_threads())
MODEL = ModelConfig(vocab_size=64, context_length=16, d_model=32, n_layers=1, n_heads=2)


@pytest.mark.parametrize("rows", [1, 16])
def test_generating_feeds_the_prompt_and_then_a_token_at_a_time(rows, monkeypatch):
    fed: list[tuple[int, ...]] = []

    class Watched(generation.DecodeSession):
        def add(self, prompts, *wanted):
            fed.append((len(prompts), len(prompts[0])))
            return super().add(prompts, *wanted)

        def extend(self, tokens, *wanted):
            fed.append(tuple(tokens.shape))
            return super().extend(tokens, *wanted)

    monkeypatch.setattr(generation, "DecodeSession", Watched)
    model, prompt = generation.random_model(MODEL, CPU), generation.random_prompt(MODEL)
    assert generation.decode_timer(model, prompt, CPU, rows=rows, tokens=5)() > 0
    assert fed == [(1, 8), *[(rows, 1)] * 5]


def test_a_prompt_fills_half_of_the_context():
    model, prompt = generation.random_model(MODEL, CPU), generation.random_prompt(MODEL)
    assert prompt.shape == (1, 8)
    assert 0 <= prompt.min() <= prompt.max() < MODEL.vocab_size
    assert generation.prefill_timer(model, prompt, CPU)() > 0


@pytest.mark.parametrize(
    ("max_tokens", "seconds", "expected"), [(1000, 40, 100), (50, 40, 50), (1000, 0.1, 8), (5, 40, 5)]
)
def test_as_many_tokens_as_a_quarter_of_the_time_allows(max_tokens, seconds, expected):
    """A token takes a tenth of a second."""
    timed = generation.choose_timed_tokens(lambda tokens: lambda: tokens / 10, max_tokens=max_tokens, seconds=seconds)
    assert timed == expected
