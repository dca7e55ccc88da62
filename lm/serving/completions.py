"""Answers of `/v1/completions` and `/v1/chat/completions`: from a body to prompts, and from samples to JSON."""

from __future__ import annotations

import asyncio
import codecs
import itertools
import json
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

from lm.decoding.batching import Finish, Token
from lm.decoding.sampling import Alternatives
from lm.errors import LMError
from lm.serving.bodies import ApiError, ChatBody, CompletionBody, from_lm_error, invalid, took_too_long
from lm.serving.inspection import ScoredIds
from lm.serving.models import ServedModel
from lm.serving.scheduler import Completion, Event
from lm.text.records import Part, parse_messages
from lm.tokenizer.tokenizer import Tokenizer


def read_messages(body: ChatBody) -> tuple[Part, ...]:
    """Return the messages of a chat; ApiError or InputError if one is wrong."""
    values = []
    for value in body.messages:
        given = {name: content for name, content in value.items() if content not in (None, [])}
        if unknown := given.keys() - {"role", "content"}:
            raise invalid(f"messages: {min(unknown)} is not supported", param="messages", code="unsupported_field")
        # "developer" is OpenAI's newer name of the system
        values.append(given | {"role": "system"} if given.get("role") == "developer" else given)
    messages = parse_messages(values)
    if messages[-1].role == "assistant":
        raise invalid("the last message is the assistant's; end with one of the user", param="messages")
    return messages


def build_completions(
    model: ServedModel, body: CompletionBody, *, max_tokens: int | None, max_samples: int, max_length: int
) -> list[Completion]:
    """Encode prompts.

    Args:
        max_tokens: of the request; 0 for prompts that are only scored; None for the default, which is shortened to the
            room there is.
        max_samples: of a request.
        max_length: tokens of a prompt and its completion.

    Raises:
        ApiError: there are too many samples or tokens.
        LMError: as of `Generator.generate`.
    """
    settings = body.sampling
    if len(body.prompts) * body.n > max_samples:
        raise invalid(f"{len(body.prompts)} prompts with {body.n} samples each are more than {max_samples}", param="n")
    if body.echo and body.logprobs is not None:
        settings = settings.replace(token_healing=False)  # the prompt's own tokens are scored
    counts, completions = Counter[str](), []
    for prompt in body.prompts:
        text = model.normalize(prompt) if isinstance(prompt, str) else prompt
        completion = Completion(
            model.generator(settings), text, n=0 if max_tokens == 0 else body.n, seed=settings.seed,
            repeat=counts[str(text)], alternatives=body.logprobs or 0,
        )  # fmt: skip
        room = max_length - len(completion.ids)
        if room < (1 if max_tokens is None else max_tokens):
            message = f"{len(completion.ids)} tokens of the prompt and {max_tokens or 1} of its completion"
            code = "context_length_exceeded"
            raise invalid(f"{message} are more than the server allows, {max_length}", param="prompt", code=code)
        completion.max_tokens = min(settings.max_tokens if max_tokens is None else max_tokens, room)
        counts[str(text)] += 1
        completions.append(completion)
    return completions


class CompletionAnswer:
    """The answer to a request, whole or as server-sent events, while the events of its completions come."""

    def __init__(
        self,
        model: ServedModel,
        body: CompletionBody,
        completions: Sequence[Completion],
        *,
        deadline: float,
        scored: Sequence[ScoredIds] = (),
        dropped_turns: int | None = None,
        is_chat: bool = False,
    ) -> None:
        """Create the answer.

        Args:
            completions: one per prompt.
            deadline: of the event loop's clock.
            scored: the prompts, if they are echoed with log-probabilities.
            dropped_turns: of a chat whose oldest turns may be left out.
        """
        self._queue = asyncio.Queue[tuple[int, Event]]()
        self._model, self._body, self._completions, self._is_chat = model, body, completions, is_chat
        self._deadline = deadline
        self._timer: asyncio.TimerHandle | None = None
        decode = model.tokenizer.decode
        prompts = [each if isinstance(each, str) else decode(each, skip_special=False) for each in body.prompts]
        self._logprobs = {
            (prompt, i): TextLogprobs(model.tokenizer, 0 if scored else len(text))
            for prompt, text in enumerate(prompts)
            for i in range(body.n)
        }
        self._n_tokens, self._n_unfinished = 0, sum(len(each.unstarted) for each in completions)
        texts = prompts if body.echo else [""] * len(prompts)
        self._echoed = list(itertools.zip_longest(texts, scored))
        name = "chat.completion" if is_chat else "text_completion"
        self._shared = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{secrets.token_hex(12)}",
            "object": f"{name}.chunk" if is_chat and body.stream else name,
            "created": int(time.time()),
            "model": model.name,
            "system_fingerprint": model.fingerprint,
        } | ({} if dropped_turns is None else {"dropped_turns": dropped_turns})

    def receive(self, prompt: int, event: Event) -> None:
        """Take an event of the completion of a prompt."""
        self._queue.put_nowait((prompt, event))

    async def _next_events(self) -> dict[tuple[int, int], list[Token | Finish]]:
        """Wait for events, and return all there are by prompt and sample; raise the error of a completion."""
        if self._timer is None:
            too_late = (0, took_too_long())
            self._timer = asyncio.get_running_loop().call_at(self._deadline, self._queue.put_nowait, too_late)
        events = [await self._queue.get()]
        while not self._queue.empty():
            events.append(self._queue.get_nowait())
        grouped: dict[tuple[int, int], list[Token | Finish]] = {}
        for prompt, event in events:
            if isinstance(event, Exception):
                raise event
            grouped.setdefault((prompt, event.row), []).append(event)
            self._n_tokens += isinstance(event, Token)
            self._n_unfinished -= isinstance(event, Finish)
        return grouped

    async def collect(self) -> dict[str, Any]:
        """Return the whole answer."""
        events: dict[tuple[int, int], list[Token | Finish]] = {}
        while self._n_unfinished:
            for place, some in (await self._next_events()).items():
                events.setdefault(place, []).extend(some)
        choices = [self._choice(place, events.get(place, []), is_first=True) for place in self._logprobs]
        return {**self._shared, "choices": choices, "usage": self._usage()}

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the answer as server-sent events; the last one may be an error."""
        usage = {"usage": None} if self._body.stream_options.include_usage else {}
        try:
            for place in self._logprobs if self._is_chat or self._body.echo else ():
                yield _to_event({**self._shared, "choices": [self._choice(place, [], is_first=True)], **usage})
            while self._n_unfinished:
                for place, events in (await self._next_events()).items():
                    choice = self._choice(place, events)
                    if any(event.text or isinstance(event, Finish) for event in events) or choice["logprobs"]:
                        yield _to_event({**self._shared, "choices": [choice], **usage})
            if usage:
                yield _to_event({**self._shared, "choices": [], "usage": self._usage()})
            yield b"data: [DONE]\n\n"
        except ApiError as error:
            yield _to_event(error.to_dict())
        except LMError as error:
            yield _to_event(from_lm_error(error).to_dict())

    def cancel(self) -> None:
        """Have no further events."""
        if self._timer:
            self._timer.cancel()
        for completion in self._completions:
            completion.is_cancelled = True

    def _choice(
        self, place: tuple[int, int], events: Sequence[Token | Finish], *, is_first: bool = False
    ) -> dict[str, Any]:
        """Return the choice of events of a sample, the first one with the echoed prompt or the role."""
        text, scored = self._echoed[place[0]] if is_first else ("", None)
        text += "".join(event.text for event in events)
        tokens = [event for event in events if isinstance(event, Token)]
        logprobs: dict[str, Any] | None = None
        if self._body.logprobs is not None and (tokens or scored or not self._body.stream):
            tokenizer, own = self._model.tokenizer, self._logprobs[place]
            logprobs = _chat_logprobs(tokenizer, tokens) if self._is_chat else own.format(tokens, scored)
        reason = next((event.reason for event in events if isinstance(event, Finish)), None)
        if is_first and not self._n_unfinished:
            reason = reason or "length"  # of a prompt that is only scored
        content: dict[str, Any] = {"text": text}
        if self._is_chat:
            role = {"role": "assistant"} if is_first else {}
            message = role | ({"content": text} if text or is_first else {})
            content = {"delta": message} if self._body.stream else {"message": message | {"refusal": None}}
        return {
            "index": place[0] * self._body.n + place[1],
            **content,
            "logprobs": logprobs,
            "finish_reason": "stop" if reason == "end_of_text" else reason,
        }

    def _usage(self) -> dict[str, int]:
        prompt = sum(len(completion.ids) for completion in self._completions)
        return {
            "prompt_tokens": prompt, "completion_tokens": self._n_tokens, "total_tokens": prompt + self._n_tokens,
        }  # fmt: skip


def _to_event(value: Any) -> bytes:
    """Encode a server-sent event in ASCII: some clients end lines at other characters too."""
    return b"data: " + json.dumps(value, separators=(",", ":"), allow_nan=False).encode() + b"\n\n"


class TextLogprobs:
    """Log-probabilities in the format of `/v1/completions`, of consecutive tokens of one text.

    Offsets are in characters, from the start of the prompt's text.
    """

    def __init__(self, tokenizer: Tokenizer, first_offset: int = 0) -> None:
        """Start after `first_offset` characters."""
        self._tokenizer, self._offset = tokenizer, first_offset
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def format(self, tokens: Sequence[Token], scored: ScoredIds | None = None) -> dict[str, Any]:
        """Return the object for further tokens, after those of a scored prompt."""
        result: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        rows: list[tuple[int, float | None, Alternatives, int]] = []
        if scored:
            columns = zip(scored.ids, scored.nats, scored.alternatives, strict=True)
            rows = [(token, None if nats is None else -nats, tuple(best), 0) for token, nats, best in columns]
        rows += [(token.id, token.logprob, token.alternatives, token.prompt_bytes) for token in tokens]
        for token, logprob, alternatives, prompt_bytes in rows:
            spelled = self._tokenizer.token_bytes(token)
            result["text_offset"].append(self._offset - len(spelled[:prompt_bytes].decode(errors="replace")))
            result["tokens"].append(_spell(spelled))
            result["token_logprobs"].append(logprob)
            best: dict[str, float] = {}
            for other, value in alternatives:
                name = _spell(self._tokenizer.token_bytes(other))
                best[f"token_id:{other}" if name in best else name] = value
            result["top_logprobs"].append(best if logprob is not None else None)
            self._offset += len(self._decoder.decode(spelled[prompt_bytes:]))
        return result


def _spell(spelled: bytes) -> str:
    r"""Return the text of a token; of one that is part of a character its bytes, as OpenAI does: `bytes:\xc3`."""
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


def _chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[Token]) -> dict[str, Any]:
    def entry(token: int, logprob: float) -> dict[str, Any]:
        spelled = tokenizer.token_bytes(token)
        return {"token": spelled.decode(errors="replace"), "logprob": logprob, "bytes": list(spelled)}

    content = [
        entry(token.id, token.logprob) | {"top_logprobs": [entry(*other) for other in token.alternatives]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}
