"""Answers to completion requests: whole, or as server-sent events."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from lm.decoding.batching import Continuation, Finish, Token
from lm.serving.api_errors import ApiError
from lm.serving.inspection import ScoredIds
from lm.serving.models import ServedModel
from lm.serving.requests import CompletionRequest
from lm.serving.responses import (
    DONE,
    FINISH_REASONS,
    ResponseMetadata,
    TextLogprobs,
    chat_logprobs,
    continuation_tokens,
    mean_logprob,
    prompt_tokens,
    to_event,
    usage,
)
from lm.serving.scheduler import Completion, Event
from lm.serving.statistics import Statistics
from lm.serving.streams import EventStream


class CompletionAnswer:
    """The answer to a request of `/v1/completions`, as its events come."""

    kind, event_kind, id_prefix = "text_completion", "text_completion", "cmpl"

    def __init__(
        self,
        model: ServedModel,
        request: CompletionRequest,
        completions: Sequence[Completion],
        *,
        stream: EventStream,
        echoed: Sequence[ScoredIds | None],
        statistics: Statistics,
    ) -> None:
        """Create the answer.

        Args:
            completions: one per prompt.
            echoed: the scores of the prompts, if they are asked for.
        """
        self._model, self._request, self._completions, self._stream = model, request, completions, stream
        extra = {"dropped_turns": request.dropped_turns} if request.truncates else {}
        self._metadata = ResponseMetadata(
            self.event_kind if request.is_stream else self.kind, self.id_prefix, model, extra
        )
        self._statistics = statistics
        self._began, self._last = time.monotonic(), 0.0
        self._prompts = [
            (prompt if isinstance(prompt, str) else model.tokenizer.decode(prompt, skip_special=False))
            for prompt in request.prompts
        ]
        self._echoed = echoed
        self._logprobs: dict[tuple[int, int], TextLogprobs] = {}
        self._samples = [[Continuation() for _ in range(request.best_of)] for _ in completions]
        self._n_unfinished = len(completions) * request.best_of if request.max_tokens else 0

    async def _next_events(self) -> list[tuple[int, Event]]:
        events = await self._stream.get()
        now = time.monotonic()
        if self._last:
            self._statistics.between_tokens.add(now - self._last)
        else:
            self._statistics.first_token.add(now - self._began)
        self._last = now
        for prompt_index, event in events:
            assert not isinstance(event, ApiError)
            self._samples[prompt_index][event.row].append(event)
            self._n_unfinished -= isinstance(event, Finish)
        return events

    async def collect(self) -> dict[str, Any]:
        while self._n_unfinished:
            await self._next_events()
        choices = []
        for prompt_index, samples in enumerate(self._samples):
            best = samples
            if self._request.best_of > self._request.n:
                best = sorted(samples, key=mean_logprob, reverse=True)[: self._request.n]
            choices += [
                self._choice(prompt_index * self._request.n + number, prompt_index, sample)
                for number, sample in enumerate(best)
            ]
        return self._metadata.to_dict(choices, usage=self._usage())

    def _choice(self, index: int, prompt_index: int, sample: Continuation) -> dict[str, Any]:
        text, logprobs = sample.text, None
        if self._request.echo:
            text = self._prompts[prompt_index] + text
        if self._request.logprobs is not None:
            tokens = continuation_tokens(sample)
            scored = self._echoed[prompt_index]
            if scored is not None:
                tokens = [*prompt_tokens(scored), *tokens]
            first = 0 if scored is not None else len(self._prompts[prompt_index])
            logprobs = TextLogprobs(self._model.tokenizer, first).format(tokens)
        reason = FINISH_REASONS[sample.finish_reason] if sample.finish_reason else "length"
        return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": reason}

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the answer as server-sent events."""
        extra = {"usage": None} if self._request.include_usage else {}
        for choice in self._first_chunks():
            yield to_event(self._metadata.to_dict([choice], **extra))
        while self._n_unfinished:
            grouped: dict[tuple[int, int], list[Token | Finish]] = {}
            for prompt_index, event in await self._next_events():
                assert not isinstance(event, ApiError)
                grouped.setdefault((prompt_index, event.row), []).append(event)
            for (prompt_index, sample), some in grouped.items():
                part = self._part(prompt_index, sample, some)
                if part is not None:
                    yield to_event(self._metadata.to_dict([part], **extra))
        if self._request.include_usage:
            yield to_event(self._metadata.to_dict([], usage=self._usage()))
        yield DONE

    def _first_chunks(self) -> Iterator[dict[str, Any]]:
        """Yield a first choice of each sample: the prompt, if it is returned."""
        if not self._request.echo:
            return
        for prompt_index, prompt in enumerate(self._prompts):
            for sample in range(self._request.n):
                scored, logprobs = self._echoed[prompt_index], None
                if scored is not None:
                    tokens = prompt_tokens(scored)
                    logprobs = self._logprobs_of(prompt_index, sample).format(tokens)
                index, reason = prompt_index * self._request.n + sample, None if self._request.max_tokens else "length"
                yield {"text": prompt, "index": index, "logprobs": logprobs, "finish_reason": reason}

    def _part(self, prompt_index: int, sample: int, events: Sequence[Token | Finish]) -> dict[str, Any] | None:
        """Return the choice of some events of a sample; None if there is nothing to say yet."""
        tokens = [event for event in events if isinstance(event, Token)]
        reason = next((FINISH_REASONS[event.reason] for event in events if isinstance(event, Finish)), None)
        text, logprobs = "".join(event.text for event in events), None
        if self._request.logprobs is not None and tokens:
            logprobs = self._format_logprobs(prompt_index, sample, tokens)
        if not text and logprobs is None and reason is None:
            return None
        shared = {"index": prompt_index * self._request.n + sample, "logprobs": logprobs, "finish_reason": reason}
        return self._format_part(text) | shared

    def _format_part(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _format_logprobs(self, prompt_index: int, sample: int, tokens: Sequence[Token]) -> dict[str, Any]:
        """Return the log-probabilities of further tokens of a sample."""
        return self._logprobs_of(prompt_index, sample).format(
            [(token.id, token.logprob, token.alternatives, token.prompt_bytes) for token in tokens]
        )

    def _logprobs_of(self, prompt_index: int, sample: int) -> TextLogprobs:
        first = 0 if self._echoed[prompt_index] is not None else len(self._prompts[prompt_index])
        return self._logprobs.setdefault((prompt_index, sample), TextLogprobs(self._model.tokenizer, first))

    def _usage(self) -> dict[str, int]:
        prompt = sum(completion.prompt_tokens for completion in self._completions)
        return usage(prompt, sum(len(sample.tokens) for samples in self._samples for sample in samples))


class ChatAnswer(CompletionAnswer):
    """The answer to a request of `/v1/chat/completions`."""

    kind, event_kind, id_prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def _choice(self, index: int, prompt_index: int, sample: Continuation) -> dict[str, Any]:  # noqa: ARG002
        logprobs = None
        if self._request.logprobs is not None:
            columns = zip(sample.tokens, sample.logprobs, sample.alternatives, strict=True)
            logprobs = chat_logprobs(self._model.tokenizer, list(columns))
        reason = FINISH_REASONS[sample.finish_reason] if sample.finish_reason else "length"
        message = {"role": "assistant", "content": sample.text, "refusal": None}
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}

    def _first_chunks(self) -> Iterator[dict[str, Any]]:
        for index in range(self._request.n):
            delta = {"role": "assistant", "content": ""}
            yield {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _format_part(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text} if text else {}}

    def _format_logprobs(self, prompt_index: int, sample: int, tokens: Sequence[Token]) -> dict[str, Any]:  # noqa: ARG002
        columns = [(token.id, token.logprob, token.alternatives) for token in tokens]
        return chat_logprobs(self._model.tokenizer, columns)
