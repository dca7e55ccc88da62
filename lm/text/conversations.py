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

from lm.errors import InputError
from lm.text import normalization
from lm.text.rows import FIELD, MalformedRowCallback, Row, check_text, list_fields, parse_rows, raise_malformed

Role = Literal["system", "user", "assistant"]
ROLES: tuple[Role, ...] = get_args(Role)

CONVERSATION_FIELDS = ("messages", "conversations")

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


def are_conversation_values(values: Mapping[str, Any]) -> bool:
    """Return whether the fields of a JSON object have a list of messages, and no text."""
    return FIELD not in values and any(isinstance(values.get(name), list) for name in CONVERSATION_FIELDS)


def _parse_conversation(row: Row) -> Conversation:
    fields = [field for field in CONVERSATION_FIELDS if field in row.values]
    if len(fields) != 1:
        raise InputError(f"{row.where}: needs either 'messages' or 'conversations'; it has {list_fields(row.values)}")
    messages = _parse_messages(row.values[fields[0]], fields[0], row.where)
    for number, message in enumerate(messages, 1):
        if not message.content.strip():
            raise InputError(f"{row.where}: message {number}: content is empty")
    if messages[-1].role != "assistant":
        raise InputError(f"{row.where}: ends with message {len(messages)} of the user, so there is no reply to learn")
    return Conversation(messages, row.number)


def _parse_messages(values: object, field: str, where: str) -> tuple[Message, ...]:
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise InputError(f"{where}: {field!r} is not a list of messages but {type(values).__name__}")
    messages = [_parse_message(value, *_KEYS[field], f"{where}: message {n}") for n, value in enumerate(values, 1)]
    return _check_turns(messages, where)


def _parse_message(value: object, role_key: str, content_key: str, where: str) -> Message:
    if not isinstance(value, Mapping) or not {role_key, content_key} <= {*value}:
        raise InputError(f"{where}: not an object with {role_key!r} and {content_key!r}")
    roles: dict[str, Role] = {name: name for name in ROLES} if role_key == "role" else _SHAREGPT_ROLES
    role, content = value[role_key], value[content_key]
    if not isinstance(role, str) or role not in roles:
        raise InputError(f"{where}: {role_key} is {role!r:.40}, not one of {', '.join(roles)}")
    if isinstance(content, Sequence) and not isinstance(content, str | bytes):
        content = "".join(_parse_part(part, where) for part in content)
    return Message(roles[role], check_text(content, f"{where}: content"))


def _parse_part(part: object, where: str) -> str:
    """Return the text of a part of content, as OpenAI's API takes it; InputError for images and sounds."""
    if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
        raise InputError(f"{where}: content has a part that is not text")
    text: str = part["text"]
    return text


def _check_turns(messages: Sequence[Message], where: str) -> tuple[Message, ...]:
    """Return the messages; InputError unless a system prompt comes first and user and assistant take turns."""
    first = 1 if messages and messages[0].role == "system" else 0
    for number, message in enumerate(messages[first:], first):
        expected: Role = "user" if (number - first) % 2 == 0 else "assistant"
        if message.role != expected:
            raise InputError(f"{where}: message {number + 1}: role is {message.role}, but {expected} is next")
    if len(messages) == first:
        raise InputError(f"{where}: has no message of a user")
    return tuple(messages)
