"""The scheduler: one thread per model, which decodes all requests in one continuous batch.

Requests join and leave between two decode steps. Long prompts are prefilled in chunks, one between two steps, and share
the KV cache of their common prefixes. Other computations run between steps too, one at a time. The thread never waits
for a client: it hands events over, and a cancelled request leaves before the next step.
"""

from __future__ import annotations

import dataclasses
import itertools
import secrets
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import torch

from lm.decoding.batching import Batch, Finish, Sample, Token
from lm.decoding.generator import Generator
from lm.decoding.session import DecodeSession, window_start
from lm.engine.selection import EnginePlan
from lm.engine.sequence_cache import PrefixCache
from lm.serving.bodies import ApiError, unavailable

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
        max_tokens: int | None = None,
        repeat: int = 0,
        alternatives: int = 0,
    ) -> None:
        """Encode a prompt.

        Args:
            generator: completions with the same one are sampled together.
            seed: sampling seed; None for a random one.
            max_tokens: instead of the generator's.
            repeat: equal prompts before it in the same request.
            alternatives: how many of the most probable tokens to return with each token.

        Raises:
            LMError: as of `Generator.generate`.
        """
        self.generator, self.repeat, self.alternatives = generator, repeat, alternatives
        self.ids = generator.encode(prompt)
        self.healing = generator.find_healing(prompt, self.ids)
        self.seed = secrets.randbits(32) if seed is None else seed
        self.max_tokens = max_tokens or generator.config.max_tokens
        self.is_cancelled = self.is_started = False
        self.receive: Callable[[Event], None] = lambda _: None
        self.unstarted = deque(range(n))

    def start_sample(self, number: int) -> tuple[int, Sample]:
        """Return the index of the next sample, and the sample with a number in the batch."""
        index = self.unstarted.popleft()
        rng = self.generator.sampler.rng(index, prompt=self.ids, repeat=self.repeat, seed=self.seed)
        return index, self.generator.build_sample(
            self.ids, rng, self.healing, number=number, max_tokens=self.max_tokens, alternatives=self.alternatives
        )


Deliver = Callable[[Sequence[tuple[Completion, Event]]], None]
"""Hands the events of a step to the thread that talks to clients; called by the scheduler's thread."""


class Scheduler:
    """Owns a model: decodes completions and computes jobs in a thread of its own, which sleeps while there are none.

    Attributes:
        counts: `steps`, `generated_tokens`, `prompt_tokens` of completions that started, and of those the
            `shared_prompt_tokens`, which were taken from the KV cache of an earlier prompt.
    """

    def __init__(self, model: Any, *, batch_size: int, max_waiting: int, prefill_chunk: int) -> None:
        """Create a scheduler; `start` starts its thread.

        Args:
            batch_size: samples decoded together.
            max_waiting: completions and jobs that may wait.
            prefill_chunk: prompt tokens prefilled between two decode steps.
        """
        self.counts = Counter[str](steps=0, generated_tokens=0, prompt_tokens=0, shared_prompt_tokens=0)
        self._model, self._batch_size, self._max_waiting, self._chunk = model, batch_size, max_waiting, prefill_chunk
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
            if self._is_stopping:
                raise ApiError(503, "the server is shutting down", code="unavailable")
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
                running = [completion for completion, _ in self._owners.values()]
                self._fail(dict.fromkeys([*running, *self._waiting]), unavailable("the model failed; see the log"))
                self._owners.clear()
                self._waiting.clear()
                self._prefixes = self._batch = None

    def _fail(self, completions: Iterable[Completion], error: Exception) -> None:
        failed = [completion for completion in completions if not completion.is_cancelled]
        for completion in failed:
            completion.is_cancelled = True
            completion.unstarted.clear()
        self._deliver([(completion, error) for completion in failed])

    def _remove_cancelled(self) -> None:
        if any(completion.is_cancelled for completion in self._waiting):
            with self._condition:
                waiting = [completion for completion in self._waiting if not completion.is_cancelled]
                self._waiting.clear()
                self._waiting.extend(waiting)
        numbers = {number for number, (completion, _) in self._owners.items() if completion.is_cancelled}
        if numbers and self._batch:
            self._batch.cancel(numbers)
            for number in numbers:
                del self._owners[number]
        if not self._owners and not self._waiting:
            self._batch = None  # frees the KV cache

    def _admit(self) -> None:
        """Prefill about a chunk of prompts, and let their samples join the batch."""
        budget = self._chunk
        while budget > 0 and self._waiting and len(self._owners) < self._batch_size:
            first = self._waiting[0]
            plan, batch = self._open(first.generator)
            window, is_new = self._window(first, plan), not first.is_started
            group = [first] if window else self._take_short(budget, plan)
            for completion in group:
                completion.is_started = True
            tokens = sum(len(completion.ids) for completion in group)
            if window:
                assert self._prefixes is not None
                known, computed = self._prefixes.extend(window, budget)
                self.counts["shared_prompt_tokens"] += known if is_new else 0
                if known + computed < len(window):
                    return
                tokens += computed - len(window)
            budget -= tokens
            samples = []
            for completion in group:
                while completion.unstarted and len(self._owners) < self._batch_size:
                    number = next(self._numbers)
                    index, sample = completion.start_sample(number)
                    self._owners[number] = (completion, index)
                    samples.append(sample)
                if not completion.unstarted:
                    self.counts["prompt_tokens"] += len(completion.ids)
            batch.admit(samples)
            with self._condition:
                while self._waiting and not self._waiting[0].unstarted:
                    self._waiting.popleft()

    def _open(self, generator: Generator) -> tuple[EnginePlan, Batch]:
        """Return the batch, which is a new one if the last one has ended."""
        if self._batch is None or self._plan is None:
            self._plan = generator.plan()
            if self._prefixes is None and self._plan.layout == "sequence":
                self._prefixes = PrefixCache(self._model)
            self._batch = Batch(DecodeSession(self._plan, prefixes=self._prefixes))
        return self._plan, self._batch

    def _take_short(self, budget: int, plan: EnginePlan) -> list[Completion]:
        """Return the first completions whose prompts fit into a budget of tokens, and their samples into the batch."""
        group: list[Completion] = []
        room = self._batch_size - len(self._owners)
        with self._condition:
            waiting = list(self._waiting)
        for completion in waiting:
            budget, room = budget - len(completion.ids), room - len(completion.unstarted)
            if group and (budget < 0 or room < 0 or self._window(completion, plan)):
                break
            group.append(completion)
        return group

    def _window(self, completion: Completion, plan: EnginePlan) -> tuple[int, ...]:
        """Return the tokens of a long prompt that are prefilled in chunks before its samples join."""
        if len(completion.ids) <= self._chunk or plan.layout != "sequence":
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
