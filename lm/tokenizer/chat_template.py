"""Chat templates: how the messages of a conversation become the text that a model reads.

A template is a Jinja program, in the form of Hugging Face's tokenizers, and it is rendered in the same sandbox with the
same functions, so the text equals that of transformers' `apply_chat_template`. Our own default (`DEFAULT_TEMPLATE`)
writes each message between two special tokens:

    <|endoftext|><|system|>Be brief.<|end|><|user|>Hi!<|end|><|assistant|>Hello.<|end|>

The generation prompt is what the template adds for the model to reply, here `<|assistant|>`. The end-of-turn token is
the token after a reply, here `<|end|>`.

To train on the assistant's tokens only, the text of each reply has to be found in the rendered text. It is marked with
two characters that no text has, and the marks are removed again. A template may state what is to be learned itself,
with `{% generation %}`. If a template changes replies, so that they cannot be marked, the text of the conversation up
to each reply is compared with the text that includes it.

Beside a `tokenizer.json`, the template is kept in `tokenizer_config.json` or, as newer folders of Hugging Face have it,
in `chat_template.jinja`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from lm import files
from lm.errors import InputError
from lm.text.conversations import Message, Role

CONFIG_FILE, TEMPLATE_FILE = "tokenizer_config.json", "chat_template.jinja"

ROLE_TOKENS: dict[Role, str] = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>"}
END_OF_TURN = "<|end|>"
CHAT_TOKENS = (*ROLE_TOKENS.values(), END_OF_TURN)
"""The special tokens of the default template."""

DEFAULT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

_PLAIN_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}{{ message['role'] | capitalize + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
PLAIN_STOP = "\nUser:"
"""The stop string of a reply in the plain template."""

_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
"""Marks around a reply: characters that Unicode reserves for internal use."""
_GENERATION_OPEN, _GENERATION_CLOSE = "\ufdd2", "\ufdd3"
"""Marks around what a `{% generation %}` block writes."""
_MARKS = (_OPEN, _CLOSE, _GENERATION_OPEN, _GENERATION_CLOSE)
_SPECIAL_KEYS = ("bos_token", "eos_token", "pad_token", "unk_token")
_HIDDEN = "\ufdd4"
"""Put into the spelling of a special token in a message, so that it is encoded as text."""


_PROBE = [Message("user", "a"), Message("assistant", "b")]


class TokenEncoder(Protocol):
    """What a template needs of a tokenizer."""

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """Return the tokens that are never split, with their IDs."""
        ...

    @property
    def end_of_text(self) -> int | None:
        """Return the token that ends a document."""
        ...

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]: ...

    def encode_with_offsets(self, text: str, *, parse_special: bool = True) -> tuple[list[int], list[tuple[int, int]]]:
        """Encode a text; also returns where each token begins and ends in it."""
        ...


class EncodedConversation(NamedTuple):
    """The tokens of a conversation.

    Attributes:
        is_reply: of each token, whether the assistant writes it, end-of-turn tokens included.
    """

    ids: list[int]
    is_reply: list[bool]


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template.

    Attributes:
        source: the Jinja program.
        special_tokens: spelling of bos_token, eos_token and others that it may use.
    """

    source: str
    special_tokens: Mapping[str, str] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(self.source)

    @classmethod
    def default(cls, *, start_of_text: str | None = None) -> ChatTemplate:
        """Return our own template, with the token that starts a document."""
        return cls(DEFAULT_TEMPLATE, {} if start_of_text is None else {"bos_token": start_of_text})

    @classmethod
    def plain(cls, *, start_of_text: str | None = None) -> ChatTemplate:
        """Return a template without special tokens, for models that learned no conversations; see `PLAIN_STOP`."""
        return cls(_PLAIN_TEMPLATE, {} if start_of_text is None else {"bos_token": start_of_text})

    @property
    def is_default(self) -> bool:
        return self.source == DEFAULT_TEMPLATE

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """Return the text of messages.

        Args:
            add_generation_prompt: whether a reply of the assistant follows.

        Raises:
            InputError: the template is invalid, refuses the messages, or does what the sandbox forbids.
        """
        return _without_marks(self._render(messages, add_generation_prompt=add_generation_prompt))

    def encode(
        self, tokenizer: TokenEncoder, messages: Sequence[Message], *, add_generation_prompt: bool = True
    ) -> list[int]:
        """Return the tokens of messages; a special token spelled in a message is text.

        Raises:
            InputError: as of `render`.
        """
        hidden = _hide_special_tokens(messages, tokenizer)
        text = self.render(hidden, add_generation_prompt=add_generation_prompt)
        if hidden == list(messages):
            return tokenizer.encode(text, parse_special=True)
        return _encode_hidden(tokenizer, text).ids

    def encode_replies(self, tokenizer: TokenEncoder, messages: Sequence[Message]) -> EncodedConversation:
        """Return the tokens of a whole conversation, and which of them the assistant writes.

        Raises:
            InputError: as of `render`; or the replies cannot be found in the text.
        """
        hidden = _hide_special_tokens(messages, tokenizer)
        text, spans, has_ends = self._find_replies(hidden)
        ids, offsets = _encode_hidden(tokenizer, text)
        is_reply = [False] * len(ids)
        words = [text[start:stop] for start, stop in offsets]
        added = set(tokenizer.added_tokens.values())
        token = 0
        for start, stop in spans:
            while token < len(ids) and offsets[token][1] <= start:
                token += 1
            while token < len(ids) and offsets[token][0] < stop:
                is_reply[token] = True
                token += 1
            if not has_ends:
                end = next((n for n in range(token, len(ids)) if words[n].strip()), token)
                if end < len(ids) and ids[end] in added:
                    is_reply[token : end + 1] = [True] * (end + 1 - token)
        return EncodedConversation(ids, is_reply)

    def end_of_turn(self, tokenizer: TokenEncoder) -> tuple[int, ...]:
        """Return the IDs of tokens that end a reply: that after it, and those that end a text."""
        eos = tokenizer.added_tokens.get(self.special_tokens.get("eos_token", ""))
        try:
            probe = self.encode_replies(tokenizer, _PROBE)
        except InputError:
            probe = EncodedConversation([], [])
        added = set(tokenizer.added_tokens.values())
        after = [index for index, is_reply in zip(*probe, strict=True) if is_reply and index in added]
        ends = (*after[-1:], eos, tokenizer.end_of_text)
        return tuple(dict.fromkeys(index for index in ends if index is not None))

    def _find_replies(self, messages: Sequence[Message]) -> tuple[str, list[tuple[int, int]], bool]:
        """Return the text, where each reply is in it, and whether that includes what ends the turn."""
        plain = self._render(messages, add_generation_prompt=False)
        if _GENERATION_OPEN in plain:
            text, spans = _remove_marks(plain, _GENERATION_OPEN, _GENERATION_CLOSE)
            return text, spans, True
        marked = self._render([_mark(message) for message in messages], add_generation_prompt=False)
        n_replies = sum(message.role == "assistant" for message in messages)
        text, spans = _remove_marks(marked, _OPEN, _CLOSE)
        if text == plain and len(spans) == n_replies:
            return text, [(start - self._space_before_reply, stop) for start, stop in spans], False
        return plain, self._compare_prefixes(messages, plain), True

    @cached_property
    def _space_before_reply(self) -> int:
        """Return how many spaces the template writes between the generation prompt and the reply."""
        prompt, reply = _PROBE[0], _mark(_PROBE[1])
        try:
            before = self.render([prompt])
            after, spans = _remove_marks(self._render([prompt, reply], add_generation_prompt=False), _OPEN, _CLOSE)
        except InputError:
            return 0
        between = after[len(before) : spans[0][0]] if spans and after.startswith(before) else ""
        return len(between) if between.isspace() else 0

    def _compare_prefixes(self, messages: Sequence[Message], text: str) -> list[tuple[int, int]]:
        """Return where replies are in the text, by what each one adds to the text before it."""
        spans = []
        for number, message in enumerate(messages):
            if message.role == "assistant":
                before = self._render(messages[:number], add_generation_prompt=True)
                after = self._render(messages[: number + 1], add_generation_prompt=False)
                if not (after.startswith(before) and text.startswith(after)):
                    raise InputError(
                        f"chat template: the reply in message {number + 1} cannot be told from the rest, because the "
                        "template changes earlier turns; use a template with {% generation %}"
                    )
                spans.append((len(before), len(before) + len(after[len(before) :].rstrip())))
        return spans

    def _render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        values = {name: self.special_tokens[name] for name in _SPECIAL_KEYS if name in self.special_tokens}
        from lm.tokenizer import jinja_sandbox  # Jinja takes time to import, and few commands need it

        return jinja_sandbox.render(
            self.source,
            generation_marks=(_GENERATION_OPEN, _GENERATION_CLOSE),
            messages=[message.to_dict() for message in messages],
            tools=None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **values,
        )


def read_chat_template(folder: Path) -> ChatTemplate | None:
    """Return the chat template beside a `tokenizer.json`; None if there is none.

    Raises:
        InputError: a file is invalid.
    """
    config: Any = files.read_json(folder / CONFIG_FILE) if (folder / CONFIG_FILE).is_file() else {}
    if not isinstance(config, dict):
        raise InputError(f"{folder / CONFIG_FILE}: not a JSON object")
    source = _choose_template(config.get("chat_template"))
    if (folder / TEMPLATE_FILE).is_file():
        try:
            source = (folder / TEMPLATE_FILE).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{folder / TEMPLATE_FILE}: not valid UTF-8 at byte {error.start}") from None
    if source is None:
        return None
    spelled = {key: _spelling(config.get(key)) for key in _SPECIAL_KEYS}
    return ChatTemplate(source, {key: name for key, name in spelled.items() if name is not None})


def write_chat_template(folder: Path, template: ChatTemplate) -> None:
    """Write a chat template beside a `tokenizer.json`, atomically."""
    text = json.dumps({**template.special_tokens, "chat_template": template.source}, indent=2, ensure_ascii=False)
    files.replace_text(folder / CONFIG_FILE, text + "\n")


def _choose_template(template: object) -> str | None:
    """Return a template, or the default one of several with names."""
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _spelling(token: object) -> str | None:
    """Return how a token is spelled, given its name or an object with it."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _mark(message: Message) -> Message:
    """Return a reply with marks around its text, without white space at its ends, which templates often remove."""
    if message.role != "assistant":
        return message
    core = message.content.strip()
    before, after = message.content.split(core, 1) if core else ("", "")
    return Message(message.role, f"{before}{_OPEN}{core}{_CLOSE}{after}")


def _remove_marks(text: str, opening: str, closing: str) -> tuple[str, list[tuple[int, int]]]:
    """Return the text without marks, and where they were."""
    first, *rest = text.split(opening)
    parts, spans, length = [first], [], len(first)
    for part in rest:
        inner, _, after = part.partition(closing)
        spans.append((length, length + len(inner)))
        parts += [inner, after]
        length += len(inner) + len(after)
    return "".join(parts), spans


def _without_marks(text: str) -> str:
    for mark in _MARKS:
        text = text.replace(mark, "")
    return text


def _hide_special_tokens(messages: Sequence[Message], tokenizer: TokenEncoder) -> list[Message]:
    """Return messages in which special tokens are not spelled, and no mark occurs."""
    names = [name for name in tokenizer.added_tokens if len(name) > 1]
    hidden = []
    for message in messages:
        content = message.content
        for mark in (*_MARKS, _HIDDEN):
            content = content.replace(mark, "")
        for name in names:
            if name in content:
                content = content.replace(name, f"{name[0]}{_HIDDEN}{name[1:]}")
        hidden.append(Message(message.role, content) if content != message.content else message)
    return hidden


class _Encoded(NamedTuple):
    ids: list[int]
    offsets: list[tuple[int, int]]


def _encode_hidden(tokenizer: TokenEncoder, text: str) -> _Encoded:
    """Encode a text; special tokens that were hidden in it are encoded as text, without what hides them.

    Offsets are those in the given text.
    """
    if _HIDDEN not in text:
        return _Encoded(*tokenizer.encode_with_offsets(text))
    names = sorted(tokenizer.added_tokens, key=len, reverse=True)
    ids: list[int] = []
    offsets: list[tuple[int, int]] = []
    start = 0
    for part in re.split(f"({'|'.join(map(re.escape, names))})", text):
        kept = [index for index, letter in enumerate(part, start) if letter != _HIDDEN]
        encoding = tokenizer.encode_with_offsets(part.replace(_HIDDEN, ""), parse_special=_HIDDEN not in part)
        ids += encoding[0]
        offsets += [
            (kept[first], kept[last - 1] + 1) if first < last else (start, start) for first, last in encoding[1]
        ]
        start += len(part)
    return _Encoded(ids, offsets)
