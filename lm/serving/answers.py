"""What the server answers: completions as JSON or events; scores, next tokens, attention, translations.

Each of `ENDPOINTS` is a job of a model's scheduler: it takes a body and returns a JSON object.
"""

from __future__ import annotations

import asyncio
import codecs
import dataclasses
import json
import math
import secrets
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from lm.config.inference import PerplexityConfig
from lm.decoding import DecodeSession
from lm.decoding.batching import Finish, Token
from lm.decoding.sampling import Alternatives, History, apply_filters
from lm.decoding.translation import TranslationModel, Translator
from lm.errors import LMError, nan_logits_error
from lm.evaluation.attention import Unit, compute_attention
from lm.evaluation.scoring import resolve_window_sizes, split_windows
from lm.model import DecoderOnly, average_predictions
from lm.serving.bodies import (
    ApiError,
    AttentionBody,
    Body,
    ChatBody,
    CompletionBody,
    NextBody,
    ScoreBody,
    TranslateBody,
    from_lm_error,
    invalid,
    took_too_long,
)
from lm.serving.scheduler import Completion, Event, ServedModel
from lm.text import Part, Record, parse_messages
from lm.text.decode import normalize_text
from lm.tokenizer import Tokenizer
from lm.tokenizer.chat_template import SpecialTokenFrame
from lm.tokenizer.offsets import TokenOffsets

MAX_ATTENTION_VALUES = 1_500_000
"""Attention weights of a response."""
_MAX_BEAM, _MAX_LINES = 32, 256
_ROWS = 256
"""Positions whose logits are ranked together."""


def read_messages(body: ChatBody) -> tuple[Part, ...]:
    """Return the messages of a chat; ApiError or InputError if one is wrong."""
    values = []
    for value in body.messages:
        given = {name: content for name, content in value.items() if content not in (None, [])}
        if unknown := given.keys() - {"role", "content", "name"}:
            raise invalid(f"messages: {min(unknown)} is not supported", param="messages", code="unsupported_field")
        # "developer" is OpenAI's newer name of the system
        values.append(given | {"role": "system"} if given.get("role") == "developer" else given)
    messages = parse_messages(values)
    if messages[-1].role == "assistant":
        raise invalid("the last message is the assistant's; end with one of the user", param="messages")
    return messages


def build_completions(
    model: ServedModel, body: CompletionBody, *, is_scored_only: bool, max_samples: int
) -> list[Completion]:
    """Encode prompts, whose completions are as long as there is room.

    Args:
        max_samples: of a request.

    Raises:
        ApiError: there are too many samples or tokens.
        LMError: as of `Generator.generate`.
    """
    settings = body.sampling
    if len(body.prompts) * body.n > max_samples:
        raise invalid(f"{len(body.prompts)} prompts with {body.n} samples each are more than {max_samples}", param="n")
    if body.echo and body.logprobs is not None:
        settings = settings.replace(token_healing=False)  # the prompt's own tokens are scored
    completions = []
    for prompt in body.prompts:
        completion = Completion(
            model.generator(settings), prompt, n=0 if is_scored_only else body.n, seed=settings.seed,
            alternatives=body.logprobs or 0,
        )  # fmt: skip
        _check_length(model, completion.ids, "prompt")
        completion.max_tokens = min(settings.text_limit, max(1, model.max_length - len(completion.ids)))
        completions.append(completion)
    return completions


def _check_length(model: ServedModel, ids: Sequence[int], field: str) -> None:
    if len(ids) > model.max_length:
        message = f"{len(ids)} tokens are more than the server allows, {model.max_length}"
        raise invalid(message, param=field, code="context_length_exceeded")


class ScoredToken(NamedTuple):
    """A token scored by a model; a first one that nothing predicts has no log-probability and no rank.

    Attributes:
        rank: among all tokens, from 1.
        alternatives: the best tokens at its position, with their log-probabilities.
    """

    id: int
    logprob: float | None = None
    rank: int | None = None
    alternatives: Alternatives = ()
    prompt_bytes: int = 0


class CompletionAnswer:
    """The answer to a request, whole or as server-sent events, while the events of its completions come.

    Choice i is sample i mod n of prompt i div n.
    """

    def __init__(
        self,
        model: ServedModel,
        body: CompletionBody,
        completions: Sequence[Completion],
        *,
        deadline: float,
        scored: Sequence[Sequence[ScoredToken]] = (),
        dropped_turns: int | None = None,
    ) -> None:
        """Create the answer.

        Args:
            completions: one per prompt.
            deadline: of the event loop's clock.
            scored: the prompts, if they are echoed with log-probabilities.
            dropped_turns: of a chat, how many of the oldest turns were left out to fit into the context.
        """
        self._queue = asyncio.Queue[tuple[int, Event]]()
        self._body, self._completions, self._deadline, self._scored = body, completions, deadline, scored
        self._is_chat, decode = dropped_turns is not None, model.tokenizer.decode
        self._prompts = [each if isinstance(each, str) else decode(each, skip_special=False) for each in body.prompts]
        self._choices = range(len(completions) * body.n)
        offsets = (0 if scored else len(self._prompts[index // body.n]) for index in self._choices)
        self._logprobs = [Logprobs(model.tokenizer, offset, is_chat=self._is_chat) for offset in offsets]
        self._n_tokens, self._n_unfinished = 0, sum(len(each.unstarted) for each in completions)
        name = "chat.completion" if self._is_chat else "text_completion"
        for number, completion in enumerate(completions):
            completion.receive = partial(self._take, number)
        self._shared = {
            "id": f"{'chatcmpl' if self._is_chat else 'cmpl'}-{secrets.token_hex(12)}",
            "object": f"{name}.chunk" if self._is_chat and body.stream else name,
            "created": int(time.time()),
            "model": model.name,
        } | ({"dropped_turns": dropped_turns} if self._is_chat else {})

    def _take(self, prompt: int, event: Event) -> None:
        self._queue.put_nowait((prompt, event))

    async def _events(self) -> AsyncIterator[dict[int, list[Token | Finish]]]:
        """Yield the events that have come, by choice, until all have ended; raise the error of a completion."""
        while self._n_unfinished:
            try:
                async with asyncio.timeout_at(self._deadline):
                    events = [await self._queue.get()]
            except TimeoutError:
                raise took_too_long() from None
            while not self._queue.empty():
                events.append(self._queue.get_nowait())
            by_choice = defaultdict[int, list[Token | Finish]](list)
            for prompt, event in events:
                if isinstance(event, Exception):
                    raise event
                by_choice[prompt * self._body.n + event.row].append(event)
                self._n_tokens += isinstance(event, Token)
                self._n_unfinished -= isinstance(event, Finish)
            yield by_choice

    async def collect(self) -> dict[str, Any]:
        """Return the whole answer."""
        all_events = defaultdict[int, list[Token | Finish]](list)
        async for by_choice in self._events():
            for index, events in by_choice.items():
                all_events[index] += events
        choices = [self._choice(index, all_events[index], is_first=True) for index in self._choices]
        return {**self._shared, "choices": choices, "usage": self._usage()}

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the answer as server-sent events; the last one may be an error."""
        usage = {"usage": None} if self._body.stream_options.include_usage else {}
        try:
            for index in self._choices if self._is_chat or self._body.echo else ():
                yield _to_event({**self._shared, "choices": [self._choice(index, [], is_first=True)], **usage})
            async for by_choice in self._events():
                for index, events in by_choice.items():
                    choice = self._choice(index, events)
                    if any(event.text or isinstance(event, Finish) for event in events) or choice["logprobs"]:
                        yield _to_event({**self._shared, "choices": [choice], **usage})
            if usage:
                yield _to_event({**self._shared, "choices": [], "usage": self._usage()})
            yield b"data: [DONE]\n\n"
        except (ApiError, LMError) as error:
            yield _to_event((error if isinstance(error, ApiError) else from_lm_error(error)).to_dict())

    def cancel(self) -> None:
        """Have no further events."""
        for completion in self._completions:
            completion.is_cancelled = True

    def _choice(self, index: int, events: Sequence[Token | Finish], *, is_first: bool = False) -> dict[str, Any]:
        """Return the choice of events of a sample, the first one with the echoed prompt or the role."""
        prompt = index // self._body.n
        text = self._prompts[prompt] if is_first and self._body.echo else ""
        text += "".join(event.text for event in events)
        tokens: list[Token | ScoredToken] = [*self._scored[prompt]] if is_first and self._scored else []
        tokens += [event for event in events if isinstance(event, Token)]
        reason = next((event.reason for event in events if isinstance(event, Finish)), None)
        if is_first and not self._n_unfinished:
            reason = reason or "length"  # of a prompt that is only scored
        content: dict[str, Any] = {"text": text}
        if self._is_chat:
            message = {"role": "assistant", "content": text} if is_first else {"content": text} if text else {}
            content = {"delta": message} if self._body.stream else {"message": message | {"refusal": None}}
        has_logprobs = self._body.logprobs is not None and (tokens or not self._body.stream)
        return {
            "index": index,
            **content,
            "logprobs": self._logprobs[index].format(tokens) if has_logprobs else None,
            "finish_reason": "stop" if reason == "end_of_text" else reason,
        }

    def _usage(self) -> dict[str, int]:
        prompt, own = sum(len(completion.ids) for completion in self._completions), self._n_tokens
        return {"prompt_tokens": prompt, "completion_tokens": own, "total_tokens": prompt + own}


def _to_event(value: Any) -> bytes:
    """Encode a server-sent event in ASCII: some clients end lines at other characters too."""
    return b"data: " + json.dumps(value, separators=(",", ":"), allow_nan=False).encode() + b"\n\n"


class Logprobs:
    """Log-probabilities in the formats of OpenAI's APIs, of consecutive tokens of one text.

    Offsets are in characters, from the start of the prompt's text.
    """

    def __init__(self, tokenizer: Tokenizer, first_offset: int = 0, *, is_chat: bool = False) -> None:
        """Start after `first_offset` characters."""
        self._tokenizer, self._offset, self._is_chat = tokenizer, first_offset, is_chat
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def format(self, tokens: Sequence[Token | ScoredToken]) -> dict[str, Any]:
        """Return the object for further tokens."""
        spell = self._tokenizer.token_bytes
        if self._is_chat:

            def entry(token: int, logprob: float | None) -> dict[str, Any]:
                return {"token": spell(token).decode(errors="replace"), "logprob": logprob, "bytes": [*spell(token)]}

            best = ([entry(*other) for other in token.alternatives] for token in tokens)
            entries = (entry(token.id, token.logprob) for token in tokens)
            content = [own | {"top_logprobs": others} for own, others in zip(entries, best, strict=True)]
            return {"content": content, "refusal": None}
        result: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token in tokens:
            spelled, before = spell(token.id), spell(token.id)[: token.prompt_bytes]
            result["text_offset"].append(self._offset - len(before.decode(errors="replace")))
            result["tokens"].append(_name(spelled))
            result["token_logprobs"].append(token.logprob)
            named: dict[str, float] = {}
            for other, value in token.alternatives:
                name = _name(spell(other))
                named[f"token_id:{other}" if name in named else name] = value
            result["top_logprobs"].append(None if token.logprob is None else named)
            text = self._decoder.decode(spelled[token.prompt_bytes :])
            self._offset += len(text) - sum(map(text.count, self._tokenizer.marks))
        return result


def _name(spelled: bytes) -> str:
    r"""Return the text of a token; of one that is part of a character its bytes, as OpenAI does: `bytes:\xc3`."""
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


@torch.inference_mode()
def score_ids(model: DecoderOnly, ids: Sequence[int], *, start_token: int | None, top: int) -> list[ScoredToken]:
    """Score tokens with the windows of `lm perplexity`: of the model's context, by half of it.

    Args:
        start_token: predicts the first token, if there is one.
        top: alternatives per token.

    Raises:
        InputError: the model's output is not a number.
    """
    context, stride = resolve_window_sizes(model.config, PerplexityConfig())
    frame, device = SpecialTokenFrame(() if start_token is None else (start_token,)), next(model.parameters()).device
    scored = [] if frame.before else [ScoredToken(token) for token in ids[:1]]
    parts = [(np.asarray(ids, dtype=np.int64), True)]
    for window in split_windows(parts, frame, context=context, stride=stride):
        tokens, n_scored = torch.from_numpy(window.tokens).to(device), int(window.is_scored.sum())
        hidden = [member.hidden(tokens[None, :-1])[0, -n_scored:].split(_ROWS) for member in model.members]
        for expected, *states in zip(tokens[-n_scored:].split(_ROWS), *hidden, strict=True):
            logits = average_predictions([each.logits(part) for each, part in zip(model.members, states, strict=True)])
            logprobs = logits.float().log_softmax(-1)
            own = logprobs.gather(-1, expected[:, None])
            if not bool(own.isfinite().all()):
                raise nan_logits_error()
            best, ranks = logprobs.topk(min(top, logprobs.shape[-1])), (logprobs > own).sum(-1) + 1
            columns = (expected, own[:, 0], ranks, best.indices, best.values)
            for token, logprob, rank, others, values in zip(*(column.tolist() for column in columns), strict=True):
                scored.append(ScoredToken(token, logprob, rank, tuple(zip(others, values, strict=True))))
    return scored


def score_prompt(model: ServedModel, prompt: str | Sequence[int], ids: Sequence[int], *, top: int) -> list[ScoredToken]:
    """Score the tokens of a prompt; the start-of-text token before a text predicts, and is not scored."""
    start = model.tokenizer.start_of_text if isinstance(prompt, str) else None
    return score_ids(model.decoder, ids if start is None else ids[1:], start_token=start, top=top)


def score(model: ServedModel, body: ScoreBody) -> dict[str, Any]:
    """Score a text: nats, rank and alternatives of each token, and totals as of `lm perplexity`."""
    decoder, text, tokens = model.decoder, normalize_text(body.text), list[dict[str, Any]]()
    ids = model.tokenizer.encode(text)
    _check_length(model, ids, "text")
    ends = TokenOffsets(model.tokenizer).ends(Record.of_text(text), np.array(ids)).tolist() if ids else []
    scored = score_ids(decoder, ids, start_token=model.tokenizer.start_of_text, top=body.top)
    for number, (token, start, end) in enumerate(zip(scored, [0, *ends], ends, strict=False)):
        spell = partial(_spell, model.tokenizer, ids[:number])
        others = [spell(other) | {"probability": math.exp(logprob)} for other, logprob in token.alternatives]
        nats = None if token.logprob is None else -token.logprob
        place = {**spell(token.id), "offset": start, "bytes": end - start}
        tokens.append({**place, "nats": nats, "rank": token.rank, "alternatives": others})
    known = [token for token in tokens if token["nats"] is not None]
    total, n_bytes = math.fsum(token["nats"] for token in known), sum(token["bytes"] for token in known)
    return {
        "tokens": tokens,
        "count": len(known),
        "bytes": n_bytes,
        "nats": total,
        "bits_per_byte": total / math.log(2) / n_bytes if n_bytes else None,
        "perplexity": math.exp(min(700, total / len(known))) if known else None,
    }


def _spell(tokenizer: Tokenizer, before: Sequence[int], token: int) -> dict[str, Any]:
    """Return a token's ID and its text after others, with replacement characters for parts of characters.

    A token that ends in a mark of inline casing has it; those after it have their capitals.
    """
    text = tokenizer.token_bytes(token).decode(errors="replace")
    if tokenizer.marks and not text.endswith(tokenizer.marks):
        stream = tokenizer.decode_stream(before)
        text = stream.feed(token) + stream.finish() or text
    return {"id": token, "text": text}


@torch.inference_mode()
def next_tokens(model: ServedModel, body: NextBody) -> dict[str, Any]:
    """Return the most probable next tokens, before and after the filters; the prompt's end is not retokenised."""
    generator, top = model.generator(body.sampling), body.top
    ids = generator.encode(body.prompt)
    _check_length(model, ids, "prompt")
    logits = DecodeSession(generator.plan(1)).add([ids]).last_logits.cpu()
    if not bool(logits.logsumexp(-1).isfinite()):
        raise nan_logits_error()
    before = logits.softmax(-1)[0]
    filtered = apply_filters(logits, generator.sampler.filters, History([ids], [len(ids)]))
    after = filtered.softmax(-1)[0].nan_to_num()
    if generator.sampler.greedy:
        after = torch.zeros_like(before)
        after[filtered[0].argmax()] = float(filtered.max() > -math.inf)
    best, extra = (each.topk(min(top, len(each))).indices.tolist() for each in (before, after))
    shown = dict.fromkeys([*best, *(token for token in extra if float(after[token]) > 0)])
    return {
        "tokens": [
            _spell(model.tokenizer, ids, token) | {"probability": float(before[token]), "filtered": float(after[token])}
            for token in shown
        ],
        "kept": int((after > 0).sum()),
        "vocab_size": len(before),
    }


def attention(model: ServedModel, body: AttentionBody) -> dict[str, Any]:
    """Return the attention weights between the tokens of a text, or of a translation and its source."""
    text, config = normalize_text(body.text), model.loaded.model.config
    sizes = [len(model.tokenizer.encode(each)) + 2 for each in (text, text if body.target is None else body.target)]
    if math.prod(sizes) * config.n_layers * config.n_heads > MAX_ATTENTION_VALUES:
        raise invalid(f"the attention of {sizes[0]} tokens is too large for a response: give less text", param="text")
    found = compute_attention(model.loaded, text, body.target, unit="tokens", to=body.to)

    def axis(units: Sequence[Unit]) -> list[dict[str, Any]]:
        return [{"id": unit.tokens[0], "text": unit.label} for unit in units]

    weights = np.round(found.weights.astype(np.float64), 4).tolist()
    return {"kind": found.kind, "queries": axis(found.queries), "keys": axis(found.keys), "weights": weights}


def translate(model: ServedModel, body: TranslateBody) -> dict[str, Any]:
    """Translate lines; with alignments, also words of translation and source, and pairs of their numbers."""
    config = model.loaded.model.config
    if not config.translates or config.syntax != "none":
        raise model.wrong_kind("translate" if config.syntax == "none" else "translate without dependency trees")
    lines = body.text.split("\n") if isinstance(body.text, str) else body.text
    if not 0 < len(lines) <= _MAX_LINES or any("\n" in line for line in lines):
        raise invalid(f"text must be 1 to {_MAX_LINES} lines", param="text")
    if body.translation.beam > _MAX_BEAM:
        raise invalid(f"beam must be at most {_MAX_BEAM}", param="beam")
    attends, results = not config.is_recurrent or config.recurrent_attention != "none", []
    for line in Translator(TranslationModel.from_loaded(model.loaded), body.translation, to=body.to).translate(lines):
        translations = [dataclasses.asdict(translation) for translation in line.translations]
        for values, translation in zip(translations, line.translations if body.alignments else (), strict=False):
            values["alignment"] = None
            if attends and translation.finish_reason != "blank" and not line.left_out:
                found = compute_attention(model.loaded, line.source, translation.tokens, to=body.to)
                source, target = (
                    [unit.label for unit in units if unit.number is not None] for units in (found.keys, found.queries)
                )
                values["alignment"] = {"source": source, "target": target, "pairs": found.alignments()}
        results.append({"source": line.source, "translations": translations, "left_out": line.left_out})
    return {"results": results}


ENDPOINTS: Mapping[str, tuple[type[Body], Callable[[ServedModel, Any], dict[str, Any]]]] = {
    "/score": (ScoreBody, score), "/next": (NextBody, next_tokens), "/attention": (AttentionBody, attention),
    "/translate": (TranslateBody, translate),
}  # fmt: skip
"""The body that each path takes, and what answers it."""
