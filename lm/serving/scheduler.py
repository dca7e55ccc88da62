"""The scheduler: one thread per model, which decodes all requests in one continuous batch.

Requests join and leave between two decode steps. Long prompts are computed in chunks, one between two steps, and share
the KV cache of their common prefixes. Other computations (`Job`) run between steps too, one at a time. The thread never
waits for a client: it hands events over, and a cancelled request leaves before the next step.
"""

from __future__ import annotations

import secrets
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from lm.decoding.batching import Batch, Finish, Sample, Token
from lm.decoding.generator import Generator
from lm.decoding.sampling import Sampler
from lm.decoding.session import DecodeSession, window_start
from lm.decoding.token_healing import HealedPrompt, PromptEnding, heal_prompts
from lm.engine.selection import EnginePlan, plan_engines
from lm.engine.sequence_cache import PrefixCache
from lm.errors import LMError
from lm.serving.api_errors import ApiError, from_lm_error, unavailable

T = TypeVar("T")

Event = Token | Finish | ApiError
Deliver = Callable[[Sequence[tuple["Completion", Event]]], None]
"""Hands the events of a step to the thread that talks to clients; called by the scheduler's thread."""


class Completion:
    """A prompt to be continued in one or several samples.

    Events of sample i have row i; an ApiError ends the whole completion.

    Attributes:
        seed: of the samples.
        is_cancelled: whether no further event is wanted.
        is_done: whether all samples have ended.
        receive: called with the completion and each event, where the scheduler's events are delivered.
    """

    def __init__(
        self,
        generator: Generator,
        prompt: str | Sequence[int],
        *,
        sampler: Sampler,
        samples: int,
        seed: int | None = None,
        repeat: int = 0,
        alternatives: int = 0,
    ) -> None:
        """Encode a prompt.

        Args:
            sampler: of these settings; completions with the same one are sampled together.
            seed: sampling seed; None for a random one.
            repeat: equal prompts before it in the same request.
            alternatives: how many of the most probable tokens to return with each token.

        Raises:
            LMError: as of `Generator.generate`.
        """
        self.generator, self.sampler = generator, sampler
        self.ids = generator.encode(prompt)
        self.seed = secrets.randbits(32) if seed is None else seed
        self.prompt_tokens = len(self.ids)
        self.is_cancelled = self.is_done = False
        self.receive: Callable[[Completion, Event], None] = lambda *_: None
        self._repeat, self._alternatives = repeat, alternatives
        self._ending: PromptEnding | None = generator.find_ending(prompt, self.ids)
        self._pending, self.n_unfinished = deque(range(samples)), samples
        self.healed: list[HealedPrompt] = []
        self.has_prefix = False

    @property
    def ending(self) -> PromptEnding | None:
        """The end of the prompt that is still to be retokenised."""
        return None if self.healed else self._ending

    @property
    def common_ids(self) -> Sequence[int]:
        """The tokens that all samples start with."""
        return self.ids if self._ending is None else self._ending.prefix_ids

    @property
    def n_pending(self) -> int:
        """Samples that have not joined the batch."""
        return len(self._pending)

    def start_samples(self, count: int, number: Callable[[int], int]) -> list[Sample]:
        """Return the next samples, numbered for the batch.

        Raises:
            UsageError: the settings ban every retokenisation of the prompt.
        """
        started = []
        for _ in range(min(count, len(self._pending))):
            sample = self._pending.popleft()
            rng = self.sampler.rng(sample, prompt=self.ids, repeat=self._repeat, seed=self.seed)
            started.append(
                self.generator.build_sample(
                    self.ids,
                    rng,
                    self.healed,
                    number=number(sample),
                    sampler=self.sampler,
                    alternatives=self._alternatives,
                )
            )
        return started


@dataclass
class Job:
    """A computation with the model that has one result."""

    compute: Callable[[], Any]
    future: Future[Any]


@dataclass
class Gauges:
    """What a scheduler counts.

    Attributes:
        prompt_tokens: tokens of prompts whose completion started.
        shared_tokens: of those, tokens taken from the KV cache of an earlier prompt.
    """

    steps: int = 0
    prompt_tokens: int = 0
    shared_tokens: int = 0
    generated_tokens: int = 0


class Scheduler:
    """Owns a model: decodes completions and computes jobs in a thread of its own, which sleeps while there are none."""

    def __init__(
        self,
        name: str,
        model: Any,
        *,
        batch_size: int,
        max_waiting: int,
        prefill_chunk: int,
        deliver: Deliver,
    ) -> None:
        """Create a scheduler; `start` starts its thread.

        Args:
            name: of the model, for the thread.
            batch_size: samples decoded together.
            max_waiting: completions and jobs that may wait.
            prefill_chunk: prompt tokens computed between two decode steps.
        """
        self.gauges = Gauges()
        self._model, self._batch_size, self._max_waiting, self._chunk = model, batch_size, max_waiting, prefill_chunk
        self._deliver = deliver
        self._threads = torch.get_num_threads()
        self._condition = threading.Condition()
        self._completions: deque[Completion] = deque()
        self._jobs: deque[Job] = deque()
        self._cancelled: list[Completion] = []
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=f"lm-{name}", daemon=True)
        self._owners: dict[int, tuple[Completion, int]] = {}
        self._next_number = 0
        self._prefilling: Completion | None = None
        self._admitting: list[Completion] = []
        self._events: list[tuple[Completion, Event]] = []
        self._plan: EnginePlan | None = None
        self._batch: Batch | None = None
        self._session: DecodeSession | None = None
        self._prefixes: PrefixCache | None = None

    def start(self) -> None:
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
        return len(self._completions) + len(self._jobs)

    @property
    def n_running(self) -> int:
        """Samples in the batch."""
        return len(self._owners)

    @property
    def n_cache_rows(self) -> int:
        """Rows of the KV cache in use."""
        session = self._session
        return 0 if session is None else len(session)

    def submit(self, completions: Sequence[Completion]) -> None:
        """Queue completions; ApiError 429 if too many wait."""
        with self._condition:
            self._check_room()
            self._completions.extend(completions)
            self._condition.notify()

    def compute(self, compute: Callable[[], T]) -> Future[T]:
        """Queue a job; ApiError 429 if too many wait."""
        future: Future[T] = Future()
        with self._condition:
            self._check_room()
            self._jobs.append(Job(compute, future))
            self._condition.notify()
        return future

    def cancel(self, completions: Iterable[Completion]) -> None:
        """Remove completions before the next step; no further event of theirs follows."""
        with self._condition:
            for completion in completions:
                completion.is_cancelled = True
                self._cancelled.append(completion)
            self._condition.notify()

    def _check_room(self) -> None:
        if self._is_stopping:
            raise unavailable("the server is shutting down")
        if self.n_waiting >= self._max_waiting:
            raise ApiError(
                429,
                f"{self.n_waiting} requests are waiting for this model; try again later",
                code="queue_full",
                headers={"Retry-After": "1"},
            )

    def _run(self) -> None:
        torch.set_num_threads(self._threads)  # each thread has its own number
        while True:
            with self._condition:
                while (
                    not (self._jobs or self._completions or self._cancelled or self._owners or self._prefilling)
                    and not self._is_stopping
                ):
                    self._condition.wait()
                if self._is_stopping:
                    return
                cancelled, self._cancelled = self._cancelled, []
                job = self._jobs.popleft() if self._jobs else None
            try:
                self._remove(cancelled)
                if job is not None:
                    _compute(job)
                self._prefill()
                self._step()
            except Exception:  # whatever it is, the server continues, and clients get no traceback
                traceback.print_exc()
                self._fail_all(unavailable("the model failed; see the server's log", retry=False))
            self._flush()

    def _remove(self, cancelled: Sequence[Completion]) -> None:
        if not cancelled:
            return
        with self._condition:
            self._completions = deque(completion for completion in self._completions if not completion.is_cancelled)
        if self._prefilling is not None and self._prefilling.is_cancelled:
            self._prefilling = None
        numbers = {number for number, (completion, _) in self._owners.items() if completion.is_cancelled}
        if numbers:
            assert self._batch is not None
            self._batch.cancel(numbers)
            for number in numbers:
                del self._owners[number]
        self._release_if_idle()

    def _prefill(self) -> None:
        """Compute about one chunk of prompts, and let samples join."""
        tokens_left = self._chunk
        while tokens_left > 0 and len(self._owners) < self._batch_size:
            if self._prefilling is None:
                group = self._take_short(tokens_left)
                if group:
                    self._admitting = group
                    try:
                        self._admit_together(group)
                    except LMError as error:
                        for failed in group:
                            self._finish_with(failed, from_lm_error(error))
                    self._admitting = []
                    tokens_left -= sum(len(admitted.ids) for admitted in group)
                    continue
                self._prefilling = self._next_completion()
            completion = self._prefilling
            if completion is None:
                return
            try:
                tokens_left -= self._prefill_long(completion, tokens_left)
            except LMError as error:
                self._finish_with(completion, from_lm_error(error))

    def _next_completion(self) -> Completion | None:
        with self._condition:
            return self._completions.popleft() if self._completions else None

    def _take_short(self, limit: int) -> list[Completion]:
        """Take the next completions as long as they are short and all their samples find room."""
        group: list[Completion] = []
        room = self._batch_size - len(self._owners)
        with self._condition:
            while self._completions:
                first = self._completions[0]
                limit, room = limit - len(first.ids), room - first.n_pending
                if len(first.ids) > self._chunk or room < 0 or (group and limit < 0):
                    break
                group.append(self._completions.popleft())
        return group

    def _admit_together(self, group: Sequence[Completion]) -> None:
        """Prefill several short prompts in one batch."""
        self._open()
        assert self._session is not None
        assert self._batch is not None
        assert self._plan is not None
        to_heal: dict[int, list[Completion]] = {}
        for completion in group:
            if completion.ending is not None:
                to_heal.setdefault(id(completion.sampler), []).append(completion)
        for same in to_heal.values():
            generator, endings = (
                same[0].generator,
                [completion.ending for completion in same if completion.ending is not None],
            )
            healed_prompts = heal_prompts(DecodeSession(self._plan), endings, generator.tokenizer, same[0].sampler)
            for completion, healed in zip(same, healed_prompts, strict=True):
                completion.healed = healed
        requests: list[Sample] = []
        for completion in group:
            requests += self._start_samples(completion)
        self._batch.admit(requests)

    def _start_samples(self, completion: Completion) -> list[Sample]:
        """Number samples of a completion that there is room for, and return their requests."""
        try:
            started = completion.start_samples(
                self._batch_size - len(self._owners), lambda sample: self._number(completion, sample)
            )
        except LMError as error:
            self._owners = {number: owner for number, owner in self._owners.items() if owner[0] is not completion}
            self._finish_with(completion, from_lm_error(error))
            return []
        if not completion.n_pending:
            self.gauges.prompt_tokens += completion.prompt_tokens
        return started

    def _prefill_long(self, completion: Completion, limit: int) -> int:
        """Compute at most `limit` tokens of a prompt, or let its samples join; return the tokens computed."""
        self._open()
        assert self._session is not None
        assert self._batch is not None
        assert self._plan is not None
        assert self._prefixes is not None
        window = self._prefix_window(completion)
        known, computed = self._prefixes.extend(window, limit) if window else (0, 0)
        if not completion.has_prefix:
            completion.has_prefix = True
            self.gauges.shared_tokens += known
        if known + computed < len(window):
            return computed
        if completion.ending is not None:
            session = DecodeSession(self._plan, prefixes=self._prefixes)
            generator = completion.generator
            (completion.healed,) = heal_prompts(session, [completion.ending], generator.tokenizer, completion.sampler)
        self._batch.admit(self._start_samples(completion))
        if not completion.n_pending:
            self._prefilling = None
        return computed + len(completion.ids) - len(window)

    def _number(self, completion: Completion, sample: int) -> int:
        """Number a sample of the batch."""
        self._next_number += 1
        self._owners[self._next_number] = (completion, sample)
        return self._next_number

    def _prefix_window(self, completion: Completion) -> tuple[int, ...]:
        """The tokens of a prompt to compute before its samples join; none of a short one that is continued as it is."""
        assert self._plan is not None
        if self._plan.layout != "sequence":
            return ()
        ids = completion.common_ids
        window = tuple(ids[window_start(len(ids), self._model.config.context_length) :])[:-1]
        return window if len(window) >= self._chunk or completion.common_ids is not completion.ids else ()

    def _step(self) -> None:
        """Sample a token of each sample, and compute the next logits."""
        if not self._owners:
            return
        assert self._batch is not None
        for event in self._batch.sample():
            completion, sample = self._owners[event.row]
            if isinstance(event, Token):
                self.gauges.generated_tokens += 1
                self._events.append(
                    (
                        completion,
                        Token(sample, event.id, event.logprob, event.text, event.alternatives, event.prompt_bytes),
                    )
                )
            else:
                del self._owners[event.row]
                completion.n_unfinished -= 1
                completion.is_done = not completion.n_unfinished
                self._events.append((completion, Finish(sample, event.reason, event.text)))
        failed = self._batch.errors
        for number, error in failed.items():
            completion, _ = self._owners[number]
            self._finish_with(completion, from_lm_error(error))
        self._flush()  # clients get the tokens while the next ones are computed
        self._batch.extend()
        self.gauges.steps += 1
        if failed:
            others = {number for number, (completion, _) in self._owners.items() if completion.is_cancelled}
            self._batch.cancel(others)
            self._owners = {number: owner for number, owner in self._owners.items() if number not in others | {*failed}}
        self._release_if_idle()

    def _open(self) -> None:
        """Create the session of a busy period."""
        if self._session is None:
            self._plan = plan_engines(self._model)
            if self._prefixes is None:
                self._prefixes = PrefixCache(self._model)
            self._session = DecodeSession(self._plan, prefixes=self._prefixes)
            self._batch = Batch(self._session)

    def _release_if_idle(self) -> None:
        """Free the KV cache when no sample runs."""
        if not self._owners and self._prefilling is None:
            self._session = self._batch = None

    def _finish_with(self, completion: Completion, error: ApiError) -> None:
        if completion.is_done:
            return
        completion.is_cancelled = completion.is_done = True
        if self._prefilling is completion:
            self._prefilling = None
        self._events.append((completion, error))

    def _fail_all(self, error: ApiError) -> None:
        running = {id(completion): completion for completion, _ in self._owners.values()}
        if self._prefilling is not None:
            running[id(self._prefilling)] = self._prefilling
        running |= {id(completion): completion for completion in self._admitting}
        for completion in running.values():
            self._finish_with(completion, error)
        self._owners.clear()
        self._admitting = []
        self._session = self._batch = self._prefixes = None

    def _flush(self) -> None:
        if self._events:
            events, self._events = self._events, []
            self._deliver(events)


def _compute(job: Job) -> None:
    """Compute a job, unless it was cancelled."""
    if not job.future.set_running_or_notify_cancel():
        return
    try:
        job.future.set_result(job.compute())
    except LMError as error:
        job.future.set_exception(from_lm_error(error))
    except ApiError as error:
        job.future.set_exception(error)
    except Exception:  # whatever it is, the server continues, and clients get no traceback
        traceback.print_exc()
        job.future.set_exception(unavailable("the model failed; see the server's log", retry=False))
