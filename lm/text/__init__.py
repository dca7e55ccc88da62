"""Input text: records (documents, examples, conversations, sentence pairs), whatever the format of their files.

Start with `Record`, then `find` (`find_text_files`) and `text_file` (`TextFile`). Knows nothing of tokenizers or
models: it may import only `lm.config` and the modules below it.

The parts of a record have roles: `text`; a `prompt` and its `completion`; or the messages of a conversation. A sentence
pair is a text with its source. A long document is several records, of which the first starts it and the last ends it,
so that memory stays bounded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from lm.config.run_config import DataKind
from lm.errors import InputError

ChatRole = Literal["system", "user", "assistant"]
Role = Literal["text", "prompt", "completion"] | ChatRole
LABEL_DELIMITER = "\n"
"""Between a text and its label, as in GPT-1 (Radford et al. 2018, section 3.3)."""

_KINDS: Mapping[Role, DataKind] = {"text": "text", "completion": "examples"}
_CHAT_ROLES: Mapping[str, ChatRole] = {
    "system": "system", "user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant",
    "chatgpt": "assistant",
}  # fmt: skip


class Part(NamedTuple):
    """A text and its role in a record."""

    role: Role
    text: str

    def to_message(self) -> dict[str, str]:
        """Return it as a message of OpenAI's format, as in files and chat templates."""
        return {"role": self.role, "content": self.text}


class Record(NamedTuple):
    """A document or part of one, an example, a conversation or a sentence pair.

    Attributes:
        source: of a sentence pair.
        dependency_heads: of the words of the source, if given.
        line: line or row in its file, from 1; 0 if unknown.
        starts: whether it is the first part of a document.
        ends: whether it is the last one, as far as that is known.
        context: preceding text, to be tokenized with it and then dropped.
    """

    parts: tuple[Part, ...]
    source: str | None = None
    dependency_heads: tuple[int, ...] | None = None
    line: int = 0
    starts: bool = True
    ends: bool = True
    context: str = ""

    @classmethod
    def of_text(cls, text: str, *, starts: bool = True, line: int = 0) -> Record:
        return cls((Part("text", text),), line=line, starts=starts)

    @classmethod
    def of_example(cls, prompt: str, completion: str, *, line: int = 0) -> Record:
        return cls((Part("prompt", prompt), Part("completion", completion)), line=line)

    @classmethod
    def of_pair(cls, source: str, target: str, *, line: int = 0) -> Record:
        return cls((Part("text", target),), source, line=line)

    @property
    def kind(self) -> DataKind:
        return "pairs" if self.source is not None else _KINDS.get(self.parts[-1].role, "conversations")

    @property
    def text(self) -> str:
        """Return the text of a document, of a target, or of all parts: messages are a line each."""
        return ("" if self.parts[0].role == "prompt" else "\n").join(part.text for part in self.parts)

    @property
    def texts(self) -> Sequence[str]:
        """Return the texts that are counted: source and target, prompt and completion, or all messages as one."""
        if self.kind == "examples":
            return [part.text for part in self.parts]
        return [self.text] if self.source is None else [self.source, self.text]

    @property
    def label(self) -> str:
        """Return the label of an example: its completion, without the delimiter."""
        return parse_label(self.parts[-1].text)

    @property
    def is_blank(self) -> bool:
        """Return whether a side of a sentence pair is missing."""
        return self.source is not None and not (self.source and self.text)

    def to_json(self) -> str:
        """Return a row that is read as an equal record; `starts` tells pieces of a text from its beginning."""
        if self.source is not None:
            heads = {} if self.dependency_heads is None else {"heads": self.dependency_heads}
            return json.dumps({"source": self.source, "target": self.text, **heads}, ensure_ascii=False)
        values: dict[str, object] = {part.role: part.text for part in self.parts}
        if not self.starts:
            values["starts"] = False
        if self.kind == "conversations":
            values = {"messages": [part.to_message() for part in self.parts]}
        return json.dumps(values, ensure_ascii=False)


def parse_label(completion: str) -> str:
    """Return the label in a completion: the text after the delimiter, or all of it."""
    return completion.removeprefix(LABEL_DELIMITER)


def check_text(value: object, where: str) -> str:
    """Return a value, with LF line ends, if it is text that can be encoded as UTF-8, else raise InputError."""
    if not isinstance(value, str):
        raise InputError(f"{where} is not text but {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(f"{where} has half a character") from None
    return value.replace("\r\n", "\n")


def parse_messages(values: object, *, allow_empty: bool = True) -> tuple[Part, ...]:
    """Return messages in the format of OpenAI (`role`, `content`) or ShareGPT (`from`, `value`).

    There may be a system prompt; then user and assistant take turns, the user first.

    Raises:
        InputError: it is no such list, or a content is empty and must not be.
    """
    if not isinstance(values, Sequence) or not all(isinstance(value, Mapping) for value in values):
        raise InputError("the messages are not a list of objects with role and content")
    parts: list[Part] = []
    for number, value in enumerate(values, 1):
        name, content = value.get("role", value.get("from")), value.get("content", value.get("value"))
        if isinstance(content, list | tuple):  # parts, as OpenAI's API takes them
            texts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
            content = "".join(check_text(text, f"message {number}: a part of the content") for text in texts)
        expected = ("assistant",) if parts and parts[-1].role == "user" else ("user",) if parts else ("system", "user")
        role = _CHAT_ROLES.get(str(name))
        if role is None or role not in expected:
            raise InputError(f"message {number}: role is {name!r:.40}, but {' or '.join(expected)} is next")
        parts.append(Part(role, check_text(content, f"message {number}: content")))
        if not (allow_empty or parts[-1].text.strip()):
            raise InputError(f"message {number}: content is empty")
    if not parts or parts[-1].role == "system":
        raise InputError("there is no message of a user")
    return tuple(parts)
