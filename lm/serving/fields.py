"""The fields of requests: which of OpenAI's are supported, refused or ignored, and which ours are beyond them.

Validation and docs/reference/server.md are derived from these tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lm.config.decoding import SamplingConfig, TranslationConfig
from lm.config.settings import did_you_mean, list_settings
from lm.serving.api_errors import invalid

Treatment = Literal["supported", "refused", "no effect"]


@dataclass(frozen=True)
class Field:
    """A field of a request.

    Attributes:
        name: as in JSON.
        treatment: "refused" if it would change the result, "no effect" if it is accepted and ignored.
        note: for the documentation, and for the error of a refused field.
        neutral: values of a refused field that change nothing, and are accepted.
    """

    name: str
    treatment: Treatment
    note: str
    neutral: tuple[Any, ...] = ()


def _sampling(name: str) -> Field:
    """A field with the name and the limits of a sampling setting."""
    option = next(setting for setting in list_settings("sampling", SamplingConfig) if setting.name == name)
    default = option.default
    shown = "" if default in (None, (), "") else f" Default: {str(default).lower()}."
    return Field(name, "supported", option.help + shown)


_SHARED = (
    Field("model", "supported", "Name of a model, of `/v1/models`; may be left out if one is served."),
    Field("n", "supported", "Samples per prompt. Default: 1."),
    Field("stream", "supported", "Send tokens as they are sampled, as server-sent events. Default: false."),
    Field("stream_options", "supported", "What a stream has beside tokens: see below."),
    _sampling("temperature"),
    _sampling("top_p"),
    _sampling("presence_penalty"),
    _sampling("frequency_penalty"),
    Field("logit_bias", "supported", "Token ID, or text, to what is added to its logit."),
    Field("stop", "supported", "One or several strings that end the text, which are not part of it."),
    Field("seed", "supported", "Sampling seed; sample i equals that of `lm generate` with this seed. Default: random."),
    _sampling("max_tokens"),
    Field("user", "no effect", "For the operator's statistics."),
)

COMPLETION_FIELDS = (
    Field("prompt", "supported", "A text, IDs, or a list of texts or of lists of IDs."),
    *_SHARED,
    Field("best_of", "supported", "Samples of which the `n` with the best mean log-probability are returned."),
    Field("echo", "supported", "Return the prompt before the text; with `logprobs` its log-probabilities too."),
    Field("logprobs", "supported", "Log-probabilities of the tokens, and of this many alternatives, at most 20."),
    Field("suffix", "refused", "the model continues a text to the right only", neutral=("",)),
)
"""The fields of `/v1/completions`."""

_NO_TOOLS = "the model calls no tools"
_HOSTED = "OpenAI's own service"
CHAT_FIELDS = (
    Field("messages", "supported", "Objects with a role and a text: see below."),
    *_SHARED,
    Field("max_completion_tokens", "supported", "The same as `max_tokens`."),
    Field("logprobs", "supported", "Whether to return log-probabilities. Default: false."),
    Field("top_logprobs", "supported", "Alternatives to each token, at most 20; with `logprobs`."),
    Field("audio", "refused", "the model writes text only"),
    Field("modalities", "refused", "the model writes text only", neutral=(["text"],)),
    Field("function_call", "refused", _NO_TOOLS, neutral=("none", "auto")),
    Field("functions", "refused", _NO_TOOLS, neutral=([],)),
    Field("tools", "refused", _NO_TOOLS, neutral=([],)),
    Field("tool_choice", "refused", _NO_TOOLS, neutral=("none", "auto")),
    Field("response_format", "refused", "the text has no prescribed format", neutral=({"type": "text"},)),
    Field("moderation", "refused", "there is no moderation"),
    Field("prediction", "refused", "there is no predicted output"),
    Field("reasoning_effort", "refused", "the model does not reason", neutral=("none",)),
    Field("verbosity", "refused", "the model has no such setting", neutral=("medium",)),
    Field("web_search_options", "refused", "there is no web search"),
    Field("metadata", "no effect", f"For {_HOSTED}."),
    Field("parallel_tool_calls", "no effect", "There are no tool calls."),
    Field("prompt_cache_key", "no effect", "Prefixes are shared anyway."),
    Field("prompt_cache_options", "no effect", "Prefixes are shared anyway."),
    Field("prompt_cache_retention", "no effect", "Prefixes are shared anyway."),
    Field("safety_identifier", "no effect", f"For {_HOSTED}."),
    Field("service_tier", "no effect", f"For {_HOSTED}."),
    Field("store", "no effect", "Nothing is stored."),
)
"""OpenAI's fields of `/v1/chat/completions`."""

MESSAGE_FIELDS = (
    Field("role", "supported", "`system`, also called `developer`; `user` or `assistant`."),
    Field("content", "supported", "A text, which may be empty, or a list of parts of type `text`."),
    Field("name", "refused", "chat templates have no names of participants"),
    Field("audio", "refused", "the model reads text only"),
    Field("refusal", "refused", "give it as content"),
    Field("function_call", "refused", _NO_TOOLS),
    Field("tool_calls", "refused", _NO_TOOLS, neutral=([],)),
    Field("tool_call_id", "refused", _NO_TOOLS),
)
"""The fields of a message."""

TEXT_PART_FIELDS = (
    Field("type", "supported", "`text`; images, audio and files are refused."),
    Field("text", "supported", "Its text."),
    Field("prompt_cache_breakpoint", "no effect", "Prefixes are shared anyway."),
)
"""The fields of a part of a message's content."""

STREAM_OPTIONS = (
    Field("include_usage", "supported", "A last event has the number of tokens. Default: false."),
    Field("include_obfuscation", "no effect", "Events have no padding."),
)
"""The fields of `stream_options`."""

TRUNCATION = Field(
    "truncation", "supported",
    "If the messages fill the context: `auto` leaves out the oldest turns, and the answer has their number as "
    "`dropped_turns`; `disabled` refuses the messages. Default: disabled. OpenAI has this field in `/v1/responses`.",
)  # fmt: skip
"""A field of `/v1/chat/completions` beyond OpenAI's."""

SAMPLING_FIELDS = tuple(
    _sampling(option.name)
    for option in list_settings("sampling", SamplingConfig)
    if option.name not in {field.name for field in COMPLETION_FIELDS}
)
"""Fields of both beyond OpenAI's, with the names and defaults of `lm generate`."""

TRANSLATION_NAMES = tuple(
    option.name
    for option in list_settings("translation", TranslationConfig)
    if option.name not in ("batch_tokens", "read_ahead")
)
"""Fields of `/translate` that are settings of `lm translate`."""


def check_fields(values: Mapping[str, Any], fields: Sequence[Field], *, of: str | None = None) -> None:
    """Raise ApiError for a field that is unknown, or refused and not neutral.

    Args:
        values: a request, or an object in it.
        of: field of the request that the object is in.
    """
    known = {field.name: field for field in fields}
    for name, value in values.items():
        field, shown = known.get(name), _short(name) if of is None else f"{of}.{_short(name)}"
        if field is None:
            raise invalid(f"unknown field {shown!r}{did_you_mean(name, known)}", param=of or shown)
        if field.treatment == "refused" and value not in field.neutral:
            raise invalid(f"{shown} is not supported: {field.note}", param=of or shown, code="unsupported_field")


def check_known(body: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise ApiError for a field that is not among some names."""
    for name in body:
        if name not in names:
            raise invalid(f"unknown field {_short(name)!r}{did_you_mean(name, names)}", param=_short(name))


def _short(name: str) -> str:
    return name if len(name) <= 40 else f"{name[:40]}…"
