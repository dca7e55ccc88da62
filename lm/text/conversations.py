"""Conversations: messages of a system prompt, a user and an assistant.

Each row of JSON Lines, a JSON array or Parquet is a conversation, in the format of OpenAI or of ShareGPT:

    {"messages": [{"role": "user", "content": "Hi!"}, {"role": "assistant", "content": "Hello."}]}
    {"conversations": [{"from": "human", "value": "Hi!"}, {"from": "gpt", "value": "Hello."}]}

A conversation may begin with a system prompt; then user and assistant take turns, the user first. In training data the
assistant has the last word: other models learn from a conversation what to reply.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from lm.config import settings as options
from lm.errors import InputError
from lm.text import normalization
from lm.text.rows import (
    FIELD,
    MalformedRowCallback,
    Row,
    describe_type,
    list_fields,
    parse_rows,
    raise_malformed,
)

Role = Literal["system", "user", "assistant"]
ROLES: tuple[Role, ...] = get_args(Role)

CONVERSATION_FIELDS = ("messages", "conversations")
CONVERSATION_FORMAT = '{"messages": [{"role": "user", "content": …}, {"role": "assistant", "content": …}]}'

_KEYS = {"messages": ("role", "content"), "conversations": ("from", "value")}
_SHAREGPT_ROLES: dict[str, Role] = {
    "human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant",
    "system": "system",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Message:
    """What one side says in a turn."""

    role: Role
    content: str

    def to_dict(self) -> dict[str, str]:
        """Return role and content, as in files and templates."""
        return {"role": self.role, "content": self.content}


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in order.

    Attributes:
        messages: an optional system prompt, then user and assistant in turn.
        line: its line number in the file, from 1; 0 if it is from no file.
    """

    messages: tuple[Message, ...]
    line: int = 0

    @property
    def text(self) -> str:
        """Return the contents, a line each."""
        return "\n".join(message.content for message in self.messages)

    @property
    def texts(self) -> tuple[str]:
        return (self.text,)

    def to_json(self) -> str:
        return json.dumps({"messages": [message.to_dict() for message in self.messages]}, ensure_ascii=False)


def parse_messages(values: object) -> tuple[Message, ...]:
    """Return the messages of a request, a list of objects with role and content; contents may be empty.

    Raises:
        InputError: it is no such list, or the roles don't take turns.
    """
    return _parse_messages(values, "messages", "messages")


def parse_conversations(
    rows: Iterable[Row], *, on_malformed: MalformedRowCallback = raise_malformed
) -> Iterator[Conversation]:
    """Yield the conversations in the rows of a file of training data.

    Args:
        on_malformed: called with rows that are no conversation [default: raise the error].

    Raises:
        InputError: a row is not a conversation; the message names file, row and message.
    """
    return parse_rows(rows, _parse_conversation, on_malformed=on_malformed)


def normalize_line_ends(conversation: Conversation) -> Conversation:
    """Return a conversation with line feeds as line ends."""
    if "\r" not in conversation.text:
        return conversation
    contents = (normalization.normalize_line_ends(message.content) for message in conversation.messages)
    messages = tuple(
        replace(message, content=text) for message, text in zip(conversation.messages, contents, strict=True)
    )
    return replace(conversation, messages=messages)


def has_conversation_fields(names: Iterable[str]) -> bool:
    """Return whether a field name is that of the messages of a conversation."""
    return any(name in CONVERSATION_FIELDS for name in names)


def are_conversation_values(values: Mapping[str, Any]) -> bool:
    """Return whether the fields of a JSON object have a list of messages, and no text."""
    return FIELD not in values and any(isinstance(values.get(name), list) for name in CONVERSATION_FIELDS)


def _parse_conversation(row: Row) -> Conversation:
    fields = [field for field in CONVERSATION_FIELDS if field in row.values]
    if not fields:
        hint = options.did_you_mean("messages", row.values)
        raise InputError(f"{row.where}: no field 'messages'{hint}; it has {list_fields(row.values)}")
    if len(fields) == 2:
        raise InputError(f"{row.where}: has 'messages' and 'conversations'; give one of them")
    messages = _parse_messages(row.values[fields[0]], fields[0], row.where)
    for number, message in enumerate(messages, 1):
        if not message.content.strip():
            problem = "content is empty; leave the conversation out, or end it before"
            raise InputError(f"{row.where}: message {number}: {problem}")
    if messages[-1].role != "assistant":
        raise InputError(
            f"{row.where}: ends with message {len(messages)} of the user, so there is no reply to learn; leave it out"
        )
    return Conversation(messages, row.number)


def _parse_messages(values: object, field: str, where: str) -> tuple[Message, ...]:
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise InputError(f"{where}: {field!r} is not a list of messages but {describe_type(values)}")
    return _check_turns(
        [_parse_message(value, *_KEYS[field], f"{where}: message {n}") for n, value in enumerate(values, 1)], where
    )


def _parse_message(value: object, role_key: str, content_key: str, where: str) -> Message:
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: not an object with {role_key!r} and {content_key!r} but {describe_type(value)}")
    for key in (role_key, content_key):
        if key not in value:
            hint = options.did_you_mean(key, value)
            raise InputError(f"{where}: no field {key!r}{hint}; it has {list_fields(value)}")
    return Message(_parse_role(value[role_key], role_key, where), _parse_content(value[content_key], where))


def _parse_role(role: object, key: str, where: str) -> Role:
    known: dict[str, Role] = {name: name for name in ROLES} if key == "role" else _SHAREGPT_ROLES
    if isinstance(role, str) and role in known:
        return known[role]
    names = tuple(known) if key == "from" else ROLES
    hint = options.did_you_mean(role, names) if isinstance(role, str) else ""
    shown = repr(role[:40]) if isinstance(role, str) else describe_type(role)
    raise InputError(f"{where}: {key} is {shown}{hint}, not {', '.join(names[:-1])} or {names[-1]}")


def _parse_content(content: object, where: str) -> str:
    if isinstance(content, Sequence) and not isinstance(content, str | bytes):
        content = _join_parts(content, where)
    if not isinstance(content, str):
        raise InputError(f"{where}: content is not text but {describe_type(content)}")
    try:
        content.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(content[error.start]):04x}"
        raise InputError(f"{where}: content has half a character ({half})") from None
    return content


def _join_parts(parts: Sequence[Any], where: str) -> str:
    """Return the text of content in parts, as OpenAI's API takes it; InputError for images and sounds."""
    for part in parts:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else describe_type(part)
            raise InputError(f"{where}: content has a part that is not text ({kind})")
    return "".join(part["text"] for part in parts)


def _check_turns(messages: Sequence[Message], where: str) -> tuple[Message, ...]:
    """Return the messages; InputError unless a system prompt comes first and user and assistant take turns."""
    if not messages:
        raise InputError(f"{where}: has no messages")
    first = 1 if messages[0].role == "system" else 0
    for number, message in enumerate(messages[first:], first):
        expected: Role = "user" if (number - first) % 2 == 0 else "assistant"
        if message.role != expected:
            rule = "only the first message may be of the system" if message.role == "system" else "they take turns"
            problem = f"role is {message.role}, but {expected} is next ({rule}, the user first)"
            raise InputError(f"{where}: message {number + 1}: {problem}")
    if len(messages) == first:
        raise InputError(f"{where}: has only a system prompt, and no message of a user")
    return tuple(messages)
