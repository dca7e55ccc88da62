"""Bodies of requests: a dataclass for each endpoint; docs/reference/server.md is made from them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from lm.config.inference import SamplingConfig, TranslationConfig
from lm.config.settings import Config, build_config, list_settings
from lm.errors import LMError

B = TypeVar("B", bound="Body")

_Samples = Annotated[int, Meta(ge=1, le=1024)]
_Alternatives = Annotated[int, Meta(ge=0, le=20)]
_Top = Annotated[int, Meta(ge=0, le=1000)]

SAMPLING = tuple(setting.name for setting in list_settings("sampling", SamplingConfig))
"""Sampling settings, which are fields of requests."""
TRANSLATION = tuple(
    setting.name for setting in list_settings("translation", TranslationConfig) if setting.name != "batch_tokens"
)
"""Settings of translation that are fields of requests."""
_SECTIONS: Mapping[str, tuple[type[Config], tuple[str, ...]]] = {
    "sampling": (SamplingConfig, SAMPLING), "translation": (TranslationConfig, TRANSLATION)
}  # fmt: skip

UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "suffix": ("",), "tools": ([],), "tool_choice": ("none", "auto"), "functions": ([],),
    "function_call": ("none", "auto"), "response_format": ({"type": "text"},), "modalities": (["text"],),
    "best_of": (1,),
}  # fmt: skip
"""Fields of OpenAI's API that would change the text and are refused, with the values that change nothing."""
IGNORED = (
    "user", "store", "metadata", "service_tier", "safety_identifier", "parallel_tool_calls", "prompt_cache_key",
    "prompt_cache_retention",
)  # fmt: skip
"""Fields of OpenAI's API without effect."""


class ApiError(Exception):
    """An error that a client receives, in OpenAI's format.

    Attributes:
        param: the field that is wrong, if it is one.
        code: for programs, such as "model_not_found".
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.headers = status, message, param, code, headers

    def to_dict(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def invalid(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """Return the error for a wrong request."""
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str) -> ApiError:
    """Return the error for a request that failed and would fail again."""
    return ApiError(503, message, code="unavailable", headers={"x-should-retry": "false"})


def took_too_long() -> ApiError:
    return unavailable("the request took too long")


def from_lm_error(error: LMError) -> ApiError:
    """Return the error for a field or an input that the library refuses."""
    message = " ".join(str(error).split())[:500]
    found = re.match(r"(?:unknown setting ')?(\w+)(?=[.:\['])", message)
    return invalid(message, param=found[1] if found else None)


@dataclass(frozen=True, kw_only=True)
class Body(Config):
    """The fields that all requests have.

    Settings:
        model: Name of a model, of `/v1/models`; may be left out if one is served.
    """

    model: str | None = None


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a stream has beside tokens.

    Settings:
        include_usage: A last event has the number of tokens.
        include_obfuscation: No effect: events have no padding.
    """

    include_usage: bool = False
    include_obfuscation: bool = False


@dataclass(frozen=True, kw_only=True)
class SharedBody(Body):
    """The fields that text and chat completions have in common.

    Settings:
        n: Samples per prompt.
        stream: Send tokens as they are sampled, as server-sent events.
        stream_options: `include_usage`: a last event of the stream has the number of tokens.
    """

    n: _Samples = 1
    stream: bool = False
    stream_options: StreamOptions = field(default_factory=StreamOptions)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)


@dataclass(frozen=True, kw_only=True)
class CompletionBody(SharedBody):
    """A request of `/v1/completions`.

    Settings:
        prompt: A text, IDs, or a list of texts or of lists of IDs.
        echo: Return the prompt before the text; with `logprobs` its log-probabilities too.
        logprobs: Log-probabilities of the tokens, and of this many alternatives, at most 20.
    """

    prompt: str | list[str | int | list[int]]
    echo: bool = False
    logprobs: _Alternatives | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, each a text or IDs; ApiError if IDs stand beside prompts."""
        prompts: list[Any] = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        is_id = [isinstance(prompt, int) for prompt in prompts]
        if not is_id or any(is_id) != all(is_id):
            raise invalid("prompt must be a text, a list of IDs, or a list of either", param="prompt")
        return [prompts] if all(is_id) else prompts


@dataclass(frozen=True, kw_only=True)
class ChatBody(SharedBody):
    """A request of `/v1/chat/completions`.

    Settings:
        messages: Objects with a role and a text: see below.
        logprobs: Whether to return log-probabilities.
        top_logprobs: Alternatives to each token, at most 20; implies `logprobs`.
    """

    messages: list[dict[str, Any]]
    logprobs: bool = False
    top_logprobs: _Alternatives = 0


@dataclass(frozen=True, kw_only=True)
class ScoreBody(Body):
    """A request of `/score`."""

    text: str
    top: _Top = 5


@dataclass(frozen=True, kw_only=True)
class NextBody(Body):
    """A request of `/next`."""

    prompt: str | list[int]
    top: _Top = 40
    sampling: SamplingConfig = field(default_factory=SamplingConfig)


@dataclass(frozen=True, kw_only=True)
class AttentionBody(Body):
    """A request of `/attention`."""

    text: str
    target: str | None = None
    to: str | None = None


@dataclass(frozen=True, kw_only=True)
class TranslateBody(Body):
    """A request of `/translate`."""

    text: str | list[str]
    to: str | None = None
    alignments: bool = False
    translation: TranslationConfig = field(default_factory=TranslationConfig)


def parse(kind: type[B], given: Mapping[str, Any]) -> B:
    """Build a body from a JSON object; null is the same as no field.

    Raises:
        ApiError: a field is not supported.
        UsageError: a field is unknown or missing, or a value is invalid.
    """
    values = {name: value for name, value in given.items() if value is not None and name not in IGNORED}
    for name, neutral in UNSUPPORTED.items():
        if name in values and values.pop(name) not in neutral:
            raise invalid(f"{name} is not supported", param=name, code="unsupported_field")
    if "max_completion_tokens" in values:  # OpenAI's newer name
        values["max_tokens"] = values.pop("max_completion_tokens")
    for name in ("top_k", "seed"):
        if values.get(name) == -1:  # all tokens, a random one; as other servers take it
            del values[name]
    if isinstance(stop := values.get("stop"), str):
        values["stop"] = [stop]
    if isinstance(biases := values.get("logit_bias"), dict):
        values["logit_bias"] = [f"{token}={bias}" for token, bias in biases.items()]
    settings: dict[str, Any] = {}
    for section, (config, names) in _SECTIONS.items():
        if section in kind.__dataclass_fields__:
            settings[section] = build_config(config, {name: values.pop(name) for name in names if name in values})
    return build_config(kind, values).replace(**settings)
