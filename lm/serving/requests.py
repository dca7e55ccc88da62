"""Parsing of completion requests: JSON objects to settings and prompts."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lm.config.decoding import SamplingConfig
from lm.config.serving import ServerConfig
from lm.config.settings import build_config, list_settings
from lm.errors import LMError
from lm.serving.api_errors import ApiError, from_lm_error, invalid
from lm.serving.fields import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    MESSAGE_FIELDS,
    SAMPLING_FIELDS,
    STREAM_OPTIONS,
    TEXT_PART_FIELDS,
    TRUNCATION,
    check_fields,
)
from lm.serving.models import ServedModel
from lm.serving.scheduler import Completion
from lm.text.records import Part, parse_messages

MAX_LOGPROBS = 20
"""Alternatives per token."""
_MAX_STOPS = 16
_OPTIONS = {setting.name: setting for setting in list_settings("sampling", SamplingConfig)}

Prompt = str | list[int]


@dataclass(frozen=True)
class CompletionRequest:
    """A request of `/v1/completions`, checked.

    Attributes:
        prompts: texts or IDs.
        config: sampling settings; `max_tokens` is the default if the request has none.
        has_max_tokens: whether it has.
        max_tokens: 0 to score the prompt alone.
        n: samples per prompt to return.
        best_of: samples per prompt to generate.
        echo: whether the prompt is returned.
        logprobs: alternatives per token; None for no log-probabilities.
        is_stream: whether tokens are sent as they come.
        include_usage: whether a stream ends with the number of tokens.
        truncates: whether the oldest turns are left out if the context is full.
        dropped_turns: their number.
    """

    prompts: list[Prompt]
    config: SamplingConfig
    has_max_tokens: bool
    max_tokens: int
    n: int
    best_of: int
    echo: bool
    logprobs: int | None
    is_stream: bool
    include_usage: bool
    truncates: bool = False
    dropped_turns: int = 0

    def with_prompt(self, ids: list[int], dropped_turns: int) -> CompletionRequest:
        """Return the same request with the prompt of a conversation."""
        return dataclasses.replace(self, prompts=[ids], dropped_turns=dropped_turns)


def read_number(
    body: Mapping[str, Any], name: str, default: int, *, minimum: int = 0, maximum: int | None = None
) -> int:
    """Return an integer field; ApiError if it is none, or out of range."""
    if name not in body:
        return default
    value = body[name]
    if not isinstance(value, int) or isinstance(value, bool):
        raise invalid(f"{name} must be an integer, not {value!r}", param=name)
    if value < minimum or (maximum is not None and value > maximum):
        limit = f"at least {minimum}" if value < minimum else f"at most {maximum}"
        raise invalid(f"{name} must be {limit}, not {value!r}", param=name)
    return value


def read_flag(body: Mapping[str, Any], name: str) -> bool:
    """Return a boolean field, false by default; ApiError if it is none."""
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise invalid(f"{name} must be true or false, not {value!r}", param=name)
    return value


def read_string(body: Mapping[str, Any], name: str) -> str:
    """Return a text field; ApiError if it is missing, no text, or not valid Unicode."""
    value = body.get(name)
    if value is None:
        raise invalid(f"{name} is missing", param=name)
    if not isinstance(value, str):
        raise invalid(f"{name} must be a text, not {value!r}", param=name)
    return check_unicode(value, name)


def check_unicode(text: str, name: str) -> str:
    """Return a text; ApiError if it has lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise invalid(f"{name} is not valid Unicode", param=name) from None
    return text


def read_sampling(body: Mapping[str, Any]) -> SamplingConfig:
    """Return the sampling settings of a request; ApiError if one is wrong."""
    values = {name: body[name] for name in _OPTIONS if name in body}
    if "stop" in values:
        values["stop"] = _read_stops(values["stop"])
    if "logit_bias" in values:
        values["logit_bias"] = _read_biases(values["logit_bias"])
    if values.get("max_tokens") == 0 and not isinstance(values["max_tokens"], bool):
        del values["max_tokens"]  # allowed to score a prompt: see `CompletionRequest`
    try:
        return build_config(SamplingConfig, values)
    except LMError as error:
        raise from_lm_error(error) from None


def _read_stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise invalid("stop must be a text, or a list of texts", param="stop")
    if len(stops) > _MAX_STOPS:
        raise invalid(f"there are {len(stops)} stop strings; at most {_MAX_STOPS} are allowed", param="stop")
    return tuple(stops)


def _read_biases(value: Any) -> tuple[str, ...]:
    if not isinstance(value, dict) or not all(
        isinstance(bias, (int, float)) and not isinstance(bias, bool) for bias in value.values()
    ):
        raise invalid("logit_bias must be an object of token IDs, or texts, with numbers", param="logit_bias")
    return tuple(f"{token}={bias}" for token, bias in value.items())


def parse_completion(body: Mapping[str, Any], config: ServerConfig) -> CompletionRequest:
    """Check a request of `/v1/completions`; ApiError if it is wrong."""
    check_fields(body, (*COMPLETION_FIELDS, *SAMPLING_FIELDS))
    prompts = read_prompts(body)
    n = read_number(body, "n", 1, minimum=1, maximum=config.max_samples)
    best_of = read_number(body, "best_of", n, minimum=1, maximum=config.max_samples)
    is_stream, echo = read_flag(body, "stream"), read_flag(body, "echo")
    if best_of < n:
        raise invalid(f"best_of is {best_of}, less than n, {n}", param="best_of")
    if best_of > n and is_stream:
        raise invalid("best_of > n cannot be streamed: the best samples are known at the end", param="best_of")
    if len(prompts) * best_of > config.max_samples:
        raise invalid(
            f"{len(prompts)} prompts with {best_of} samples each are more than {config.max_samples} samples",
            param="n" if len(prompts) == 1 else "prompt",
        )
    sampling = read_sampling(body)
    max_tokens = 0 if body.get("max_tokens") == 0 else sampling.max_tokens
    if not max_tokens and not echo:
        raise invalid("max_tokens must be at least 1, or 0 with echo, to score the prompt", param="max_tokens")
    return CompletionRequest(
        prompts=prompts,
        config=sampling,
        has_max_tokens="max_tokens" in body,
        max_tokens=max_tokens,
        n=n,
        best_of=best_of,
        echo=echo,
        logprobs=read_number(body, "logprobs", 0, maximum=MAX_LOGPROBS) if "logprobs" in body else None,
        is_stream=is_stream,
        include_usage=read_include_usage(body, is_stream=is_stream),
    )


def parse_chat(body: Mapping[str, Any], config: ServerConfig) -> tuple[tuple[Part, ...], CompletionRequest]:
    """Check a request of `/v1/chat/completions`; return its messages and the rest. ApiError if it is wrong."""
    check_fields(body, (*CHAT_FIELDS, TRUNCATION, *SAMPLING_FIELDS))
    messages = _read_messages(body)
    limit = body.get("max_completion_tokens", body.get("max_tokens", SamplingConfig().max_tokens))
    if body.get("max_tokens", limit) != limit:
        raise invalid("max_tokens and max_completion_tokens differ; give one of them", param="max_completion_tokens")
    sampling = read_sampling({**body, "max_tokens": limit, "token_healing": False})
    if limit == 0:
        raise invalid("max_tokens must be at least 1", param="max_tokens")
    n, is_stream, has_logprobs = (
        read_number(body, "n", 1, minimum=1, maximum=config.max_samples),
        read_flag(body, "stream"),
        read_flag(body, "logprobs"),
    )
    if "top_logprobs" in body and not has_logprobs:
        raise invalid("top_logprobs needs logprobs", param="top_logprobs")
    top = read_number(body, "top_logprobs", 0, maximum=MAX_LOGPROBS)
    truncation = body.get("truncation", "disabled")
    if truncation not in ("auto", "disabled"):
        raise invalid(f"truncation must be auto or disabled, not {truncation!r}", param="truncation")
    return messages, CompletionRequest(
        prompts=[],
        config=sampling,
        has_max_tokens="max_tokens" in body or "max_completion_tokens" in body,
        max_tokens=sampling.max_tokens,
        n=n,
        best_of=n,
        echo=False,
        logprobs=top if has_logprobs else None,
        is_stream=is_stream,
        include_usage=read_include_usage(body, is_stream=is_stream),
        truncates=truncation == "auto",
    )


def _read_messages(body: Mapping[str, Any]) -> tuple[Part, ...]:
    values = body.get("messages")
    if values is None:
        raise invalid("messages is missing", param="messages")
    for message in _objects(values):
        check_fields(message, MESSAGE_FIELDS, of="messages")
        for part in _objects(message.get("content")):
            if part.get("type") == "text":
                check_fields(part, TEXT_PART_FIELDS, of="messages.content")
    if isinstance(values, list):  # "developer" is OpenAI's newer name of the system
        values = [
            {**value, "role": "system"} if isinstance(value, dict) and value.get("role") == "developer" else value
            for value in values
        ]
    try:
        messages = parse_messages(values)
    except LMError as error:
        raise invalid(str(error), param="messages") from None
    if messages[-1].role == "assistant":
        raise invalid("the last message is the assistant's; end with one of the user", param="messages")
    return messages


def _objects(values: Any) -> list[dict[str, Any]]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def read_include_usage(body: Mapping[str, Any], *, is_stream: bool) -> bool:
    """Return whether a stream ends with the number of tokens; ApiError if the options are wrong."""
    options = body.get("stream_options")
    if options is None:
        return False
    if not is_stream:
        raise invalid("stream_options needs stream", param="stream_options")
    if not isinstance(options, dict):
        raise invalid("stream_options must be an object", param="stream_options")
    check_fields(options, STREAM_OPTIONS, of="stream_options")
    return read_flag(options, "include_usage")


def read_prompts(body: Mapping[str, Any]) -> list[Prompt]:
    """Return the prompts of a request; ApiError if there is none, or they are neither texts nor IDs."""
    value = body.get("prompt")
    if isinstance(value, str):
        return [check_unicode(value, "prompt")]
    if isinstance(value, list) and value:
        if all(isinstance(prompt, str) for prompt in value):
            return [check_unicode(prompt, "prompt") for prompt in value]
        if _are_ids(value):
            return [value]
        if all(isinstance(prompt, list) and prompt and _are_ids(prompt) for prompt in value):
            return list(value)
    if value is None:
        raise invalid("prompt is missing", param="prompt")
    raise invalid("prompt must be a text, a list of IDs, or a list of either", param="prompt")


def _are_ids(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) for value in values)


def build_completions(model: ServedModel, request: CompletionRequest, config: ServerConfig) -> list[Completion]:
    """Encode prompts.

    Raises:
        ApiError: one cannot be encoded or is too long, or a bias is malformed.
    """
    counts: Counter[Any] = Counter()
    built = []
    for prompt in request.prompts:
        text = model.normalize(prompt) if isinstance(prompt, str) else prompt
        key = text if isinstance(text, str) else tuple(text)
        settings = request.config
        if request.echo and request.logprobs is not None and settings.token_healing:
            settings = settings.replace(token_healing=False)  # the prompt's own tokens are scored
        try:
            completion = _fit(model, text, settings, request, config, repeat=counts[key])
        except LMError as error:
            raise from_lm_error(error) from None
        counts[key] += 1
        built.append(completion)
    return built


def _fit(
    model: ServedModel,
    prompt: Prompt,
    settings: SamplingConfig,
    request: CompletionRequest,
    config: ServerConfig,
    *,
    repeat: int,
) -> Completion:
    """Encode a prompt, and shorten the default number of tokens to the server's limit."""

    def build(settings: SamplingConfig) -> Completion:
        return Completion(
            model.generator(settings),
            prompt,
            sampler=model.sampler(settings),
            samples=request.best_of,
            seed=settings.seed,
            repeat=repeat,
            alternatives=request.logprobs or 0,
        )

    completion = build(settings)
    room = config.max_length - completion.prompt_tokens
    if room >= settings.max_tokens:
        return completion
    if room < 1 or request.has_max_tokens:
        and_completion = f" and {settings.max_tokens} of its completion" if request.has_max_tokens else ""
        raise ApiError(
            400,
            f"{completion.prompt_tokens} tokens of the prompt{and_completion} are more than the server allows, "
            f"{config.max_length}",
            param="prompt" if room < 1 else "max_tokens",
            code="context_length_exceeded",
        )
    return build(dataclasses.replace(settings, max_tokens=room, min_tokens=min(settings.min_tokens, room)))
