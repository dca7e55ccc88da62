"""Responses of the completions API: whole, or as server-sent events."""

from __future__ import annotations

import codecs
import json
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lm.decoding.batching import Continuation
from lm.decoding.sampling import Alternatives
from lm.serving.inspection import ScoredIds
from lm.serving.models import ServedModel
from lm.tokenizer.tokenizer import Tokenizer

_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff]")
FINISH_REASONS = {"length": "length", "end_of_text": "stop", "stop": "stop"}
"""OpenAI's name of each `FinishReason`."""


def to_json(value: Any) -> bytes:
    """Encode a value in UTF-8; lone surrogates and what some clients take for a line end are escaped."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text).encode()


def to_event(value: Any) -> bytes:
    return b"data: " + to_json(value) + b"\n\n"


DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class ResponseMetadata:
    """Fields that all objects of one response have in common.

    Attributes:
        kind: of the object, such as "text_completion".
        prefix: of the ID.
        extra: fields beyond OpenAI's.
        key: what tells its ID from others.
        created: seconds since 1970.
    """

    kind: str
    prefix: str
    model: ServedModel
    extra: Mapping[str, Any] = field(default_factory=dict)
    key: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def to_dict(self, choices: Sequence[Any], **others: Any) -> dict[str, Any]:
        return {
            "id": f"{self.prefix}-{self.key}",
            "object": self.kind,
            "created": self.created,
            "model": self.model.name,
            "system_fingerprint": self.model.fingerprint,
            "choices": list(choices),
            **self.extra,
            **others,
        }


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    total = prompt_tokens + completion_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}


class TextLogprobs:
    """Log-probabilities in the format of `/v1/completions`, of consecutive tokens of one text.

    Offsets are in characters, from the start of the prompt's text.
    """

    def __init__(self, tokenizer: Tokenizer, first_offset: int = 0) -> None:
        """Start after `first_offset` characters."""
        self._tokenizer, self._offset = tokenizer, first_offset
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def format(self, tokens: Sequence[tuple[int, float | None, Alternatives, int]]) -> dict[str, Any]:
        """Return the object for further tokens: ID, log-probability, alternatives and leading bytes of the prompt."""
        result: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token, logprob, alternatives, prompt_bytes in tokens:
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


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[tuple[int, float, Alternatives]]) -> dict[str, Any]:
    """Return log-probabilities in the format of `/v1/chat/completions`: of IDs, with their alternatives."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        spelled = tokenizer.token_bytes(token)
        return {"token": spelled.decode(errors="replace"), "logprob": logprob, "bytes": list(spelled)}

    content = [
        entry(token, logprob) | {"top_logprobs": [entry(*other) for other in alternatives]}
        for token, logprob, alternatives in tokens
    ]
    return {"content": content, "refusal": None}


def continuation_tokens(sample: Continuation) -> list[tuple[int, float | None, Alternatives, int]]:
    """Return the tokens of a sample as `TextLogprobs.format` takes them."""
    prompt_bytes = [sample.prompt_bytes, *[0] * len(sample.tokens)]
    return list(zip(sample.tokens, sample.logprobs, sample.alternatives, prompt_bytes, strict=False))


def prompt_tokens(scored: ScoredIds) -> list[tuple[int, float | None, Alternatives, int]]:
    """Return the scored tokens of a prompt as `TextLogprobs.format` takes them."""
    return [
        (token, None if nats is None else -nats, tuple(others), 0)
        for token, nats, others in zip(scored.ids, scored.nats, scored.alternatives, strict=True)
    ]


def mean_logprob(sample: Continuation) -> float:
    return sum(sample.logprobs) / max(1, len(sample.logprobs))
