"""Chat templates: how the messages of a conversation become the text that a model reads.

A template is a Jinja program, in the form of Hugging Face's tokenizers, and it is rendered in the same sandbox with the
same functions, so the text equals that of transformers' `apply_chat_template`. Our own default (`DEFAULT_TEMPLATE`)
writes each message between two special tokens:

    <|endoftext|><|system|>Be brief.<|end|><|user|>Hi!<|end|><|assistant|>Hello.<|end|>

The generation prompt is what the template adds for the model to reply, here `<|assistant|>`. The end-of-turn token is
the token after a reply, here `<|end|>`.

To train on the assistant's tokens only, each reply has to be found in the rendered text. It begins where the text of
the messages before it ends, with the generation prompt: so what is learned is what a chat asks for. Its end is marked
with a character that no text has, and the mark is removed again. A template may mark the end itself, with
`{% generation %}`.

Beside a `tokenizer.json`, the template is kept in `tokenizer_config.json` or, as newer folders of Hugging Face have it,
in `chat_template.jinja`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lm import files
from lm.errors import InputError
from lm.text.records import ChatRole, Part

CONFIG_FILE, TEMPLATE_FILE = "tokenizer_config.json", "chat_template.jinja"

ROLE_TOKENS: dict[ChatRole, str] = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>"}
END_OF_TURN = "<|end|>"
CHAT_TOKENS = (*ROLE_TOKENS.values(), END_OF_TURN)
"""The special tokens of the default template."""

DEFAULT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

PLAIN_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}{{ message['role'] | capitalize + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
"""A template without special tokens, for models that learned no conversations."""
PLAIN_STOP = "\nUser:"
"""The stop string of a reply in the plain template."""

_SPECIAL_KEYS = ("bos_token", "eos_token", "pad_token", "unk_token")

SPECIAL, CUT = "\ufdd0", "\ufdd1"
"""Marks in a text: the name after it is a special token; no token crosses this place. Unicode reserves these characters
for internal use."""
_HIDDEN, _END, _BLOCK_END = "\ufdd2", "\ufdd3", "\ufdd4"
"""Marks inside the name of a special token that is text, after a reply, and after a `{% generation %}` block."""
_MARKS = re.compile("[\ufdd0-\ufdd4]")

_PROBE = [Part("user", "a"), Part("assistant", "b")]


class TokenEncoder(Protocol):
    """What a template needs of a tokenizer."""

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """Return the tokens that are never split, with their IDs."""
        ...

    @property
    def special_tokens(self) -> Mapping[str, int]: ...

    @property
    def special_pattern(self) -> re.Pattern[str]:
        """Return the pattern of the names of special tokens, the longest first."""
        ...

    def encode_marked(
        self, text: str, cuts: Sequence[int] = ()
    ) -> tuple[list[int], NDArray[np.int64], NDArray[np.int64]]:
        """Encode a text with marks; also returns where each token begins in it, and where its characters end."""
        ...


class EncodedConversation(NamedTuple):
    """The tokens of a conversation.

    Attributes:
        is_reply: of each token, whether the assistant writes it, end-of-turn tokens included.
        texts: what each token of the assistant spells; nothing for special tokens.
    """

    ids: list[int]
    is_reply: list[bool]
    texts: list[str]


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
    def default(cls, start_of_text: str | None, source: str = DEFAULT_TEMPLATE) -> ChatTemplate:
        """Return our own template, or `PLAIN_TEMPLATE`, with the token that starts a document."""
        return cls(source, {} if start_of_text is None else {"bos_token": start_of_text})

    def to_json(self) -> dict[str, str]:
        """Return it as `tokenizer_config.json` holds it."""
        return {**self.special_tokens, "chat_template": self.source}

    @property
    def is_default(self) -> bool:
        return self.source == DEFAULT_TEMPLATE

    def render(self, messages: Sequence[Part], *, add_generation_prompt: bool = True) -> str:
        """Return the text of messages.

        Args:
            add_generation_prompt: whether a reply of the assistant follows.

        Raises:
            InputError: the template is invalid, refuses the messages, or does what the sandbox forbids.
        """
        return _MARKS.sub("", self._render(messages, add_generation_prompt=add_generation_prompt))

    def encode(
        self, tokenizer: TokenEncoder, messages: Sequence[Part], *, add_generation_prompt: bool = True
    ) -> list[int]:
        """Return the tokens of messages; a special token spelled in a message is text.

        Raises:
            InputError: as of `render`.
        """
        return tokenizer.encode_marked(self._write(tokenizer, messages, add_generation_prompt=add_generation_prompt))[0]

    def encode_replies(self, tokenizer: TokenEncoder, messages: Sequence[Part]) -> EncodedConversation:
        """Return the tokens of a whole conversation, and which of them the assistant writes.

        Raises:
            InputError: as of `render`; or the replies cannot be found in the text.
        """
        plain = self._write(tokenizer, messages, add_generation_prompt=False, ends=_BLOCK_END)
        has_blocks = _BLOCK_END in plain
        marked = plain if has_blocks else self._write(tokenizer, messages, add_generation_prompt=False, ends=_END)
        parts = marked.split(_BLOCK_END if has_blocks else _END)
        text, ends = "".join(parts), [*itertools.accumulate(map(len, parts[:-1]))]
        if not has_blocks and text != plain:  # the template does something else because of the mark
            ends = []
        numbers = [number for number, message in enumerate(messages) if message.role == "assistant"]
        prompts = [self._write(tokenizer, messages[:number]) for number in numbers]
        starts = [len(prompt) for prompt in prompts]
        ids, firsts, lasts = tokenizer.encode_marked(text)
        if cuts := [start for start in starts if ((firsts < start) & (start < lasts)).any()]:
            ids, firsts, lasts = tokenizer.encode_marked(text, cuts)
        added, special = (set(tokens.values()) for tokens in (tokenizer.added_tokens, tokenizer.special_tokens))
        is_reply, texts = [False] * len(ids), [""] * len(ids)
        for number, prompt, following in zip(numbers, prompts, [*starts[1:], len(text) + 1], strict=True):
            start = len(prompt)
            end = max((end for end in ends if start <= end < following), default=None)
            if end is None or not text.startswith(prompt):
                raise InputError(f"chat template: message {number + 1} does not follow the generation prompt as it is")
            begin, stop = map(int, np.searchsorted(firsts, (start, end)))
            if not has_blocks:  # the token after a reply ends the turn
                after = int(np.searchsorted(lasts, len(text) - len(text[end:].lstrip()), side="right"))
                stop = after + 1 if after < len(ids) and ids[after] in added else stop
            is_reply[begin:stop] = [True] * (stop - begin)
            spelled = zip(ids[begin:stop], itertools.pairwise([start, *lasts[begin:stop].tolist()]), strict=True)
            texts[begin:stop] = ["" if index in special else text[slice(*span)] for index, span in spelled]
        return EncodedConversation(ids, is_reply, texts)

    def end_of_turn(self, tokenizer: TokenEncoder) -> tuple[int, ...]:
        """Return the IDs of tokens that end a reply: that after it, and the template's end of a text."""
        try:
            ids, is_reply, _ = self.encode_replies(tokenizer, _PROBE)
        except InputError:
            ids, is_reply = [], []
        added = tokenizer.added_tokens
        after = [index for index, learned in zip(ids, is_reply, strict=True) if learned and index in added.values()]
        eos = added.get(self.special_tokens.get("eos_token", ""))
        return (*after[-1:], *(() if eos is None else (eos,)))

    def _write(
        self,
        tokenizer: TokenEncoder,
        messages: Sequence[Part],
        *,
        add_generation_prompt: bool = True,
        ends: str = "",
    ) -> str:
        """Return the text of messages in which special tokens are marked, and the ends of replies if requested."""
        pattern, hidden = tokenizer.special_pattern, []
        for message in messages:
            content = _MARKS.sub("", message.text)
            content = pattern.sub(lambda name: f"{name[0][0]}{_HIDDEN}{name[0][1:]}", content)
            if ends == _END and message.role == "assistant":
                size = len(content.rstrip())  # templates often remove white space
                content = content[:size] + _END + content[size:]
            hidden.append(Part(message.role, content))
        text = self._render(hidden, add_generation_prompt=add_generation_prompt)
        text = pattern.sub(lambda name: SPECIAL + name[0], text)
        return text.translate(dict.fromkeys(map(ord, {_HIDDEN, _BLOCK_END} - {ends})))

    def _render(self, messages: Sequence[Part], *, add_generation_prompt: bool) -> str:
        from lm.tokenizer import jinja_sandbox  # Jinja takes time to import, and few commands need it

        return jinja_sandbox.render(
            self.source,
            block_end=_BLOCK_END,
            messages=[message.to_message() for message in messages],
            tools=None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **self.special_tokens,
        )


def read_chat_template(folder: Path) -> ChatTemplate | None:
    """Return the chat template beside a `tokenizer.json`; None if there is none.

    Raises:
        InputError: a file is invalid.
    """
    config = read_json_object(folder / CONFIG_FILE)
    source = config.get("chat_template")
    if isinstance(source, list):  # several with names
        source = {entry["name"]: entry["template"] for entry in source}.get("default")
    if (folder / TEMPLATE_FILE).is_file():
        source = (folder / TEMPLATE_FILE).read_text(encoding="utf-8")
    if source is None:
        return None
    spelled = {key: spelling(config.get(key)) for key in _SPECIAL_KEYS}
    return ChatTemplate(source, {key: name for key, name in spelled.items() if name is not None})


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, empty if there is no such file; InputError if it is none."""
    values: Any = files.read_json(path) if path.is_file() else {}
    if not isinstance(values, dict):
        raise InputError(f"{path}: not a JSON object")
    return values


def spelling(token: object) -> str | None:
    """Return how a token is spelled, given its name or an object with it."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None
