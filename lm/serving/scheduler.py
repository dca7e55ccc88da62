"""Served models: each has a scheduler, a thread that decodes all requests for it in one continuous batch.

Requests join and leave between two decode steps. Long prompts are prefilled in chunks, one between two steps, and share
the KV cache of their common prefixes. Other computations run between steps too, one at a time. The thread never waits
for a client: it hands events over, and a cancelled request leaves before the next step.
"""

from __future__ import annotations

import dataclasses
import itertools
import secrets
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from lm.checkpoint import LoadedModel
from lm.config.inference import SamplingConfig, ServerConfig
from lm.config.run_config import HardwareConfig
from lm.config.settings import LARGEST
from lm.corpus.encode import encode_prompt
from lm.decoding import DecodeSession, window_start
from lm.decoding.batching import Batch, Finish, Sample, Token
from lm.decoding.chat import fit_into_context
from lm.decoding.generator import Generator
from lm.engine import EnginePlan, load_for_decoding
from lm.engine.kv_cache import PrefixCache
from lm.errors import UsageError
from lm.model import DecoderOnly
from lm.serving.bodies import ApiError, invalid, unavailable
from lm.text import Part
from lm.tokenizer import Tokenizer
from lm.tokenizer.chat_template import find_language_tags

T = TypeVar("T")

Event = Token | Finish | Exception


class Completion:
    """A prompt to be continued in several samples.

    Events of sample i have row i; an exception ends the whole completion.

    Attributes:
        is_cancelled: set to have no further event; samples leave before the next step.
        is_started: whether its prompt is being prefilled.
        receive: called with each event, by the thread that events are delivered to.
        unstarted: samples that have not joined the batch.
        healing: of the end of the prompt, if it is chosen again.
    """

    def __init__(
        self,
        generator: Generator,
        prompt: str | Sequence[int],
        *,
        n: int = 1,
        seed: int | None = None,
        alternatives: int = 0,
    ) -> None:
        """Encode a prompt.

        Args:
            generator: completions with the same one are sampled together.
            seed: sampling seed; None for a random one.
            alternatives: how many of the most probable tokens to return with each token.

        Raises:
            LMError: as of `Generator.generate`.
        """
        self.generator, self.alternatives = generator, alternatives
        self.ids = generator.encode(prompt)
        self.healing = generator.find_healing(prompt, self.ids)
        self.seed = secrets.randbits(32) if seed is None else seed
        self.max_tokens = generator.config.text_limit
        self.is_cancelled = self.is_started = False
        self.receive: Callable[[Event], None] = lambda _: None
        self.unstarted = deque(range(n))

    def start_sample(self, number: int) -> tuple[int, Sample]:
        """Return the index of the next sample, and the sample with a number in the batch."""
        index = self.unstarted.popleft()
        return index, self.generator.build_sample(
            self.ids,
            index,
            self.healing,
            seed=self.seed,
            number=number,
            max_tokens=self.max_tokens,
            alternatives=self.alternatives,
        )


Deliver = Callable[[Sequence[tuple[Completion, Event]]], None]
"""Hands the events of a step to the thread that talks to clients; called by the scheduler's thread."""


class Scheduler:
    """Owns a model: decodes completions and computes jobs in a thread of its own, which sleeps while there are none.

    Attributes:
        counts: `steps`, `generated_tokens`, `prompt_tokens` of completions that started, and of those the
            `shared_prompt_tokens`, which were taken from the KV cache of an earlier prompt.
    """

    def __init__(self, model: Any, config: ServerConfig) -> None:
        """Create a scheduler; `start` starts its thread."""
        self.counts = Counter[str](steps=0, generated_tokens=0, prompt_tokens=0, shared_prompt_tokens=0)
        self._model, self._batch_size = model, config.batch_size
        self._max_waiting, self._chunk = config.max_requests, config.prefill_chunk
        self._threads = torch.get_num_threads()
        self._condition = threading.Condition()
        self._waiting = deque[Completion]()  # the first may have started
        self._jobs = deque[Callable[[], None]]()
        self._is_stopping = False
        self._owners: dict[int, tuple[Completion, int]] = {}  # completion and sample of each number in the batch
        self._numbers = itertools.count()
        self._plan: EnginePlan | None = None
        self._prefixes: PrefixCache | None = None
        self._batch: Batch | None = None

    def start(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the current step; what is unfinished is cancelled."""
        with self._condition:
            self._is_stopping = True
            self._condition.notify()
        self._thread.join()

    @property
    def n_waiting(self) -> int:
        """Completions and jobs that have not started."""
        return sum(not completion.is_started for completion in list(self._waiting)) + len(self._jobs)

    @property
    def n_running(self) -> int:
        """Samples in the batch."""
        return len(self._owners)

    def submit(self, completions: Iterable[Completion]) -> None:
        """Queue completions; ApiError if too many wait."""
        self._queue(self._waiting, completions)

    def compute(self, compute: Callable[[], T]) -> Future[T]:
        """Queue a job; ApiError if too many wait."""
        future: Future[T] = Future()

        def job() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(compute())
                except Exception as error:  # the waiting request's, not the thread's
                    future.set_exception(error)

        self._queue(self._jobs, [job])
        return future

    def _queue(self, queue: deque[T], items: Iterable[T]) -> None:
        with self._condition:
            if (n := self.n_waiting) >= self._max_waiting:
                message = f"{n} requests are waiting for this model; try again later"
                raise ApiError(429, message, code="queue_full", headers={"Retry-After": "1"})
            queue.extend(items)
            self._condition.notify()

    def _run(self) -> None:
        torch.set_num_threads(self._threads)  # each thread has its own number
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._is_stopping or self._jobs or self._waiting or self._owners)
                if self._is_stopping:
                    return
                job = self._jobs.popleft() if self._jobs else None
            try:
                if job:
                    job()
                self._remove_cancelled()
                self._admit()
                self._step()
                self._remove_cancelled()
            except Exception:  # whatever it is, the server continues, and clients get no traceback
                traceback.print_exc()
                failed = [completion for completion, _ in self._owners.values()]
                self._owners.clear()
                with self._condition:
                    failed += self._waiting
                    self._waiting.clear()
                self._fail(dict.fromkeys(failed), unavailable("the model failed; see the log"))
                self._prefixes = self._batch = None

    def _fail(self, completions: Iterable[Completion], error: Exception) -> None:
        failed = [completion for completion in completions if not completion.is_cancelled]
        for completion in failed:
            completion.is_cancelled = True
            completion.unstarted.clear()
        self._deliver([(completion, error) for completion in failed])

    def _remove_cancelled(self) -> None:
        with self._condition:
            for completion in [completion for completion in self._waiting if completion.is_cancelled]:
                self._waiting.remove(completion)
        numbers = {number for number, (completion, _) in self._owners.items() if completion.is_cancelled}
        if numbers and self._batch:
            self._batch.cancel(numbers)
            for number in numbers:
                del self._owners[number]
        if not self._owners and not self._waiting:
            self._batch = None  # frees the KV cache

    def _admit(self) -> None:
        """Prefill about a chunk of prompts, and let their samples join the batch."""
        budget, samples = self._chunk, list[Sample]()
        while budget > 0 and self._waiting and len(self._owners) < self._batch_size:
            completion = self._waiting[0]
            plan = self._open(completion.generator)
            if window := self._window(completion, plan):
                assert self._prefixes is not None
                if samples and self._batch is not None:  # before their prefixes are extended or dropped
                    self._batch.admit(samples)
                    samples = []
                known, computed = self._prefixes.extend(window, budget)
                self.counts["shared_prompt_tokens"] += 0 if completion.is_started else known
                completion.is_started, budget = True, budget - computed
                if known + computed < len(window):
                    break
            completion.is_started, budget = True, budget - len(completion.ids) + len(window)
            while completion.unstarted and len(self._owners) < self._batch_size:
                number = next(self._numbers)
                index, sample = completion.start_sample(number)
                self._owners[number] = (completion, index)
                samples.append(sample)
            if not completion.unstarted:
                self.counts["prompt_tokens"] += len(completion.ids)
                with self._condition:
                    self._waiting.popleft()
        if samples and self._batch is not None:
            self._batch.admit(samples)

    def _open(self, generator: Generator) -> EnginePlan:
        """Return the plan of the batch, which is a new one if the last one has ended."""
        if self._batch is None or self._plan is None:
            self._plan = generator.plan()
            if self._prefixes is None and self._plan.use_cache:
                self._prefixes = PrefixCache(self._model)
            self._batch = Batch(DecodeSession(self._plan, prefixes=self._prefixes))
        return self._plan

    def _window(self, completion: Completion, plan: EnginePlan) -> tuple[int, ...]:
        """Return the tokens of a long prompt that are prefilled in chunks before its samples join."""
        if len(completion.ids) <= self._chunk or not plan.use_cache:
            return ()
        ids = completion.ids[:-1] if completion.healing else completion.ids
        return tuple(ids[window_start(len(ids), self._model.config.context_length) : -1])

    def _step(self) -> None:
        """Sample a token of each sample, and compute the next logits."""
        if not self._owners or not self._batch:
            return
        events: list[tuple[Completion, Event]] = []
        for event in self._batch.sample():
            completion, sample = self._owners[event.row]
            if not isinstance(event, Token):
                del self._owners[event.row]
            if not completion.is_cancelled:
                self.counts["generated_tokens"] += isinstance(event, Token)
                events.append((completion, dataclasses.replace(event, row=sample)))
        for number, error in self._batch.errors.items():
            completion, _ = self._owners.pop(number)
            if not completion.is_cancelled:
                completion.is_cancelled = True
                events.append((completion, error))
        self._deliver(events)  # clients get the tokens while the next ones are computed
        self._batch.extend()
        self.counts["steps"] += 1


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model with its name and scheduler.

    Attributes:
        scheduler: the only user of the model.
        max_length: tokens of a prompt, or of a text to score.
    """

    name: str
    loaded: LoadedModel
    scheduler: Scheduler
    max_length: int

    @property
    def tokenizer(self) -> Tokenizer:
        return self.loaded.tokenizer

    @property
    def decoder(self) -> DecoderOnly:
        """The decoder; ApiError if the model doesn't continue texts."""
        model = self.loaded.model
        if model.config.translates or not isinstance(model, DecoderOnly):
            raise self.wrong_kind("continue or score texts")
        return model

    @property
    def context(self) -> int:
        """The number of tokens that a chat may have."""
        return min(self.decoder.config.context_length, self.max_length)

    def wrong_kind(self, description: str) -> ApiError:
        """Return the error for a model of another kind."""
        message = f"model {self.name!r} {self.loaded.config.purpose}; it does not {description}"
        return invalid(message, param="model", code="wrong_model")

    def encode_chat(self, messages: Sequence[Part], *, max_tokens: int) -> tuple[list[int], int]:
        """Return the tokens of messages and the generation prompt; the oldest turns are left out to fit the context.

        Returns:
            The IDs, and the number of turns that are left out.

        Raises:
            ApiError: the model has no chat template, or the last message exceeds the context.
            InputError: the template refuses the messages.
        """
        if self.tokenizer.chat_template is None:
            message = f"model {self.name!r} has no chat template: use /v1/completions"
            raise invalid(message, param="model", code="no_chat_template")
        try:
            encode = partial(encode_prompt, tokenizer=self.tokenizer)
            return fit_into_context(messages, encode, context=self.context, max_tokens=max_tokens)
        except UsageError as error:
            raise invalid(str(error), param="messages", code="context_length_exceeded") from None

    def generator(self, config: SamplingConfig) -> Generator:
        """Return a generator, the same for settings that differ in their seed and `max_tokens` alone.

        Raises:
            ApiError: as of `decoder`.
            UsageError: the settings are wrong.
        """
        return self._build_generator(config.replace(seed=0, max_tokens=LARGEST))

    @cached_property
    def _build_generator(self) -> Callable[[SamplingConfig], Generator]:
        is_supervised = self.loaded.config.is_supervised
        return lru_cache(256)(partial(Generator, self.decoder, self.tokenizer, follows_examples=is_supervised))

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of `/v1/models`; fields beyond OpenAI's describe the model."""
        config, source = self.loaded.model.config, self.loaded.source_tokenizer or self.tokenizer
        is_decoder = not (config.is_masked or config.translates)
        return {
            "id": self.name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "lm",
            "purpose": self.loaded.config.purpose,
            "context_length": config.context_length,
            "has_attention": not config.is_recurrent and config.syntax == "none" and config.attention != "linformer",
            "has_completions": is_decoder,
            "has_chat_template": is_decoder and self.tokenizer.chat_template is not None,
            "languages": sorted(find_language_tags(source)) if self.loaded.config.has_language_tags else [],
        }


Models = Mapping[str, ServedModel]


def find_model(models: Models, name: str | None) -> ServedModel:
    """Return the model that a request names, or the only one; ApiError if there is none."""
    if name is None and len(models) == 1:
        return next(iter(models.values()))
    if name is None or name not in models:
        problem = "model is missing" if name is None else f"there is no model {name[:80]!r}"
        message = f"{problem}; choose from {', '.join(models)}"
        raise ApiError(404, message, param="model", code="model_not_found")
    return models[name]


def name_models(arguments: Sequence[str]) -> dict[str, Path]:
    """Name the runs of a command line: NAME=RUN, or the name of the folder; UsageError if two have the same name."""
    named: dict[str, Path] = {}
    for argument in arguments:
        name, _, path = argument.partition("=")
        if not path or Path(argument).exists():
            name, path = Path(argument).resolve().name, argument
        if name in named:
            raise UsageError(f"{named[name]} and {path} are both called {name!r}: name one, NAME={path}")
        named[name] = Path(path)
    return named


def load_models(runs: Mapping[str, Path], hardware: HardwareConfig, config: ServerConfig) -> Models:
    """Load models; InputError if a run is missing or damaged."""
    served = {}
    for name, run in runs.items():
        loaded = load_for_decoding(run, hardware)
        served[name] = ServedModel(name, loaded, Scheduler(loaded.model, config), config.max_length)
    return served
