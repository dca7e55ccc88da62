"""The scheduler, in this process: events and counts, however requests meet in the batch."""

from __future__ import annotations

import functools
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence

import pytest
import torch
from torch.utils.hooks import RemovableHandle

from lm.config.inference import SamplingConfig, ServerConfig
from lm.config.model import ModelConfig
from lm.decoding.batching import Continuation, Finish, Token
from lm.decoding.generator import Generator
from lm.errors import UsageError
from lm.model import DecoderOnly, build_model
from lm.serving.bodies import ApiError
from lm.serving.scheduler import Completion, Scheduler
from tests.cli.small_runs import make_tokenizer
from tests.tolerances import approx
from tests.waiting import SECONDS

CHUNK = 16
BANNED = {"logit_bias": tuple(f"{token}=-inf" for token in range(300))}


@functools.cache
def model() -> DecoderOnly:
    tokenizer = make_tokenizer("bpe")
    built = build_model(
        ModelConfig(vocab_size=tokenizer.vocab_size, context_length=128, d_model=16, n_layers=1, n_heads=2,
                    init_std=0.3), seed=3,
    ).eval()  # fmt: skip
    assert isinstance(built, DecoderOnly)
    return built


def generator(**settings) -> Generator:
    settings = {"seed": 5, "max_tokens": 6, "temperature": 1.5, "ignore_eos": True, **settings}
    return Generator(model(), make_tokenizer("bpe"), SamplingConfig(**settings))


def completion(prompt: str | Sequence[int], *, n: int = 1, alternatives: int = 0, **settings) -> Completion:
    ours = generator(**settings)
    return Completion(ours, prompt, n=n, seed=ours.config.seed, alternatives=alternatives)


def ids(n: int, start: int = 0) -> list[int]:
    return [5 + (start + 7 * place) % 200 for place in range(n)]


class Driver:
    """A scheduler, stopped at the end of a context.

    Attributes:
        events: of each completion.
        steps: the completions of the tokens of each step.
        react: called in the scheduler's thread after each delivery, between two steps.
    """

    def __init__(self, *, batch_size: int = 4, max_waiting: int = 99) -> None:
        self.events: dict[Completion, list[Token | Finish | Exception]] = defaultdict(list)
        self.steps: list[list[Completion]] = []
        self.react: Callable[[], object] = lambda: None
        self._unfinished: dict[Completion, int] = {}
        self._are_done = threading.Event()
        config = ServerConfig(batch_size=batch_size, max_requests=max_waiting, prefill_chunk=CHUNK)
        self.scheduler = Scheduler(model(), config)
        self._is_started = False

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.start()
        self.scheduler.stop()

    def start(self) -> None:
        if not self._is_started:
            self._is_started = True
            self.scheduler.start(self._deliver)

    def submit(self, *completions: Completion) -> None:
        self._unfinished |= {each: len(each.unstarted) for each in completions}
        self._are_done.clear()
        self.scheduler.submit(completions)

    def run(self, *completions: Completion) -> None:
        """Submit completions, and wait until all that were submitted have ended."""
        if completions:
            self.submit(*completions)
        self.start()
        assert self._are_done.wait(SECONDS)

    def _deliver(self, events: Sequence[tuple[Completion, Token | Finish | Exception]]) -> None:
        for each, event in events:
            self.events[each].append(event)
            self._unfinished[each] -= not isinstance(event, Token)
        self.steps.append([each for each, event in events if isinstance(event, Token)])
        self.react()
        if all(each.is_cancelled or not n for each, n in self._unfinished.items()):
            self._are_done.set()

    def continuations(self, each: Completion) -> list[Continuation]:
        """The samples of a completion that did not fail."""
        samples: dict[int, Continuation] = defaultdict(Continuation)
        for event in self.events[each]:
            assert not isinstance(event, Exception)
            samples[event.row].append(event)
        return [samples[row] for row in sorted(samples)]


def assert_equal(found: Sequence[Continuation], expected: Sequence[Continuation]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one.text, one.tokens, one.finish_reason) == (other.text, other.tokens, other.finish_reason)
        assert one.logprobs == approx(other.logprobs, model=model())
        assert [len(best) for best in one.alternatives] == [len(best) for best in other.alternatives]


def test_samples_equal_those_of_a_generator_and_are_counted():
    """Short and long prompts, retokenised or not, beyond the context and with more samples than the batch has rows."""
    asked = [
        ("The owl saw the fo", {"n": 2, "alternatives": 3}),
        ("The owl", {"temperature": 0.0, "token_healing": False}),
        (ids(CHUNK), {"n": 5, "seed": 7, "max_tokens": 3}),
        (ids(CHUNK + 1), {"n": 2, "top_k": 5}),
        ("The owl saw the fox by the mill. Über den Bäumen sa", {"n": 3, "stop": ("e", "o")}),
        (ids(200, start=1), {"max_tokens": 9, "repetition_penalty": 1.3}),
        (ids(1), {"max_tokens": 1}),
        ("The owl saw", {"ignore_eos": False, "logit_bias": (f"{make_tokenizer('bpe').end_of_text}=9",)}),
    ]
    completions = [completion(prompt, **settings) for prompt, settings in asked]
    with Driver(batch_size=4) as driver:
        driver.run(*completions)
    total = 0
    for each, (prompt, settings) in zip(completions, asked, strict=True):
        options = {name: settings.pop(name) for name in ("n", "alternatives") if name in settings}
        expected = generator(**settings).samples(prompt, **options)
        assert_equal(driver.continuations(each), expected)
        total += sum(len(sample.tokens) for sample in expected)
    assert max(map(len, driver.steps)) == 4
    counted = driver.scheduler.counts
    assert counted["generated_tokens"] == total
    assert counted["prompt_tokens"] == sum(len(each.ids) for each in completions)
    assert counted["steps"] == len(driver.steps)
    assert (driver.scheduler.n_waiting, driver.scheduler.n_running) == (0, 0)


def test_about_a_chunk_of_prompts_is_computed_between_two_steps():
    short, long = completion(ids(2), max_tokens=9), completion(ids(5 * CHUNK), max_tokens=1)
    with Driver() as driver:
        driver.run(short, long)
    assert driver.steps[:4] == [[short]] * 4
    assert long in [step[-1] for step in driver.steps[4:]]


def test_a_prompt_starts_with_the_prefix_of_an_earlier_one():
    """If it is one of 32 tokens and more; all but the last token of the same prompt."""
    first = ids(70)
    others = {31: 0, 32: 32, 50: 50, 69: 69, 70: 69}
    with Driver(batch_size=10) as driver:
        driver.run(completion(first))
        for common, shared in others.items():
            before = driver.scheduler.counts["shared_prompt_tokens"]
            asked = [*first[:common], *ids(80 - common, start=3)] if common < 70 else first
            again = completion(asked)
            driver.run(again)
            assert driver.scheduler.counts["shared_prompt_tokens"] - before == shared
            assert_equal(driver.continuations(again), generator().samples(asked))


@pytest.mark.parametrize("prompt", ["The owl", ids(20), "The owl saw the fox by the mill. " * 3])
def test_a_completion_that_fails_leaves_the_others_alone(prompt):
    """At its first token, or at the one after the end of its prompt."""
    fails, works = completion(prompt, n=2, **BANNED), [completion(ids(4), n=2), completion("The owl saw")]
    with Driver(batch_size=8) as driver:
        driver.run(works[0], fails, works[1])
    *_, error = driver.events[fails]
    assert isinstance(error, UsageError)
    assert "every token is banned" in str(error)
    assert_equal(driver.continuations(works[0]), generator().samples(ids(4), n=2))
    assert_equal(driver.continuations(works[1]), generator().samples("The owl saw"))


@pytest.mark.parametrize("size", [3, 20])
def test_when_the_model_fails_everything_fails_and_later_requests_are_computed(size, capsys):
    """Whether the prompt that it fails at is computed with others or in chunks."""
    runs, fails, later = completion(ids(2), max_tokens=50), completion(ids(size, start=1)), completion(ids(2, start=2))

    def fail_once(_: object, inputs: tuple[torch.Tensor, ...]) -> None:
        if inputs[0].shape[1] > 1:  # a prompt
            hooks.pop().remove()
            raise RuntimeError("a fault")

    def react() -> None:
        if len(driver.steps) == 2:
            hooks.append(model().decoder.register_forward_pre_hook(fail_once))
            driver.submit(fails)

    hooks: list[RemovableHandle] = []
    with Driver(batch_size=2) as driver:
        driver.react = react
        driver.run(runs)
        driver.run(later)
    for each in (runs, fails):
        error = driver.events[each][-1]
        assert isinstance(error, ApiError)
        assert (error.status, error.headers) == (503, {"x-should-retry": "false"})
        assert "fault" not in error.message
    assert_equal(driver.continuations(later), generator().samples(ids(2, start=2)))
    assert "RuntimeError: a fault" in capsys.readouterr().err
