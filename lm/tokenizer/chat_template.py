"""Chat templates: how the messages of a conversation become the text that a model reads.

A template is a Jinja program, in the form of Hugging Face's tokenizers, and it is rendered in the same sandbox with the
same functions, so the text equals that of transformers' `apply_chat_template`. Our own default (`DEFAULT_TEMPLATE`)
writes each message between two special tokens:

    <|endoftext|><|system|>Be brief.<|end|><|user|>Hi!<|end|><|assistant|>Hello.<|end|>

The generation prompt is what the template adds for the model to reply, here `<|assistant|>`. The end-of-turn token is
the token after a reply, here `<|end|>`.

To train on the assistant's tokens only, each reply has to be found in the rendered text. It begins where the text of
the messages before it ends, with the generation prompt: so what is learned is what a chat asks for. Its end is marked
with a character that no text has, and the mark is removed again.

Beside a `tokenizer.json`, the template is kept in `tokenizer_config.json` or, as newer folders of Hugging Face have it,
in `chat_template.jinja`.

Special tokens around a text: start, end, language tags and the mask.

Training, scoring and decoding all use these, so that they agree:

    prompt     start, prompt
    example    start, prompt, completion, end
    source     language tag (of a model with several directions), source, end
    target     target, end; the decoder reads it after a start token, and a model without an encoder after its source
               and that token
"""

from __future__ import annotations

import datetime
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from lm import files
from lm.config.run_config import MASK
from lm.errors import InputError, UsageError
from lm.text import Part

if TYPE_CHECKING:
    import jinja2

    from lm.tokenizer import Tokenizer

CONFIG_FILE, TEMPLATE_FILE = "tokenizer_config.json", "chat_template.jinja"

END_OF_TURN = "<|end|>"
CHAT_TOKENS = ("<|system|>", "<|user|>", "<|assistant|>", END_OF_TURN)
"""The special tokens of the default template."""

DEFAULT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

_SPECIAL_KEYS = ("bos_token", "eos_token", "pad_token", "unk_token")

CUT, _END = "\ufdd0", "\ufdd1"
"""Marks in a text: no token crosses this place; a reply ends. Unicode reserves these characters for internal use."""
_ZERO_WIDTH = "\u200b"


class EncodedConversation(NamedTuple):
    """The tokens of a conversation.

    Attributes:
        texts: what each token that the assistant writes spells; nothing for special tokens such as the end of its turn,
            None for tokens that it does not write.
    """

    ids: list[int]
    texts: list[str | None]


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template.

    Attributes:
        source: the Jinja program.
        special_tokens: spelling of bos_token, eos_token and others that it may use.
    """

    source: str
    special_tokens: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def default(cls, start_of_text: str | None) -> ChatTemplate:
        """Return our own template, with the token that starts a document."""
        return cls(DEFAULT_TEMPLATE, {} if start_of_text is None else {"bos_token": start_of_text})

    def to_json(self) -> dict[str, str]:
        """Return it as `tokenizer_config.json` holds it."""
        return {**self.special_tokens, "chat_template": self.source}

    def render(self, messages: Sequence[Part]) -> str:
        """Return the text of messages, and after one of the user the generation prompt.

        Raises:
            InputError: the template is invalid, refuses the messages, or does what the sandbox forbids.
        """
        try:
            return _compile(self.source).render(
                messages=[message.to_message() for message in messages], tools=None, documents=None,
                add_generation_prompt=messages[-1].role != "assistant", **self.special_tokens,
            )  # fmt: skip
        except Exception as error:  # a template can raise whatever Python can
            raise InputError(f"chat template: {' '.join(str(error).split())}") from None

    def encode(self, tokenizer: Tokenizer, messages: Sequence[Part]) -> EncodedConversation:
        """Return the tokens of a conversation, and which of them the assistant writes.

        A conversation that ends with the user is a prompt: it ends with the generation prompt, and a reply to it begins
        with the next token. The spelling of a special token in a message gets a zero-width space after its first
        character, so that it is text.

        Raises:
            InputError: as of `render`; or the replies cannot be found in the text, unless it is a prompt.
        """
        text = self._write(tokenizer, messages)
        parts = self._write(tokenizer, messages, mark_ends=True).split(_END)
        ends = [*itertools.accumulate(map(len, parts[:-1]))]
        prompts = [self._write(tokenizer, messages[:n]) for n, each in enumerate(messages) if each.role == "assistant"]
        if "".join(parts) != text or len(ends) != len(prompts) or not all(map(text.startswith, prompts)):
            if messages[-1].role == "assistant":
                raise InputError("chat template: a reply does not follow the generation prompt as it is")
            prompts, ends = [], []
        starts = [*map(len, prompts)]
        ids, firsts, lasts = tokenizer.encode_special(text)
        if cuts := [start for start in starts if ((firsts < start) & (start < lasts)).any()]:
            ids, firsts, lasts = tokenizer.encode_special(text, cuts)
        texts: list[str | None] = [None] * len(ids)
        for start, end in zip(starts, ends, strict=True):
            begin, stop = map(int, np.searchsorted(firsts, (start, end)))
            # the token after a reply ends the turn
            after = int(np.searchsorted(lasts, len(text) - len(text[end:].lstrip()), side="right"))
            if ids[after : after + 1] and ids[after] in tokenizer.added_tokens.values():
                stop = after + 1
            for index, span in zip(range(begin, stop), itertools.pairwise([start, *lasts[begin:stop]]), strict=True):
                texts[index] = "" if ids[index] in tokenizer.special_tokens.values() else text[slice(*span)]
        return EncodedConversation(ids, texts)

    def end_of_turn(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """Return the ID of the token that ends a reply, if there is one."""
        try:
            ids, texts = self.encode(tokenizer, [Part("user", "a"), Part("assistant", "b")])
        except InputError:
            return ()
        after = [index for index, text in zip(ids, texts, strict=True) if text is not None]
        return tuple(index for index in after if index in tokenizer.added_tokens.values())[-1:]

    def _write(self, tokenizer: Tokenizer, messages: Sequence[Part], *, mark_ends: bool = False) -> str:
        """Return the text of messages without special tokens of their own, with the ends of replies marked if asked."""
        names, harmless = "|".join(map(re.escape, tokenizer.special_tokens)) or "(?!)", []
        for role, content in messages:
            text = content.replace(CUT, "").replace(_END, "")
            text = re.sub(names, lambda name: name[0][0] + _ZERO_WIDTH + name[0][1:], text)
            if mark_ends and role == "assistant":
                size = len(text.rstrip())  # templates often remove white space
                text = text[:size] + _END + text[size:]
            harmless.append(Part(role, text))
        return self.render(harmless)


@lru_cache(maxsize=32)
def _compile(source: str) -> jinja2.Template:
    """Compile a template with the options and functions that transformers gives it."""
    import jinja2.ext  # takes time, and few commands need it
    import jinja2.sandbox

    def raise_exception(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)  # Jinja's own escapes HTML
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.datetime.now().strftime(pattern)
    # `{% generation %}` tells transformers what is learned; it writes nothing
    plain = re.sub(r"(\{%[-+]?\s*)(end)?generation\b", lambda tag: tag[1] + ("endif" if tag[2] else "if true"), source)
    return environment.from_string(plain)


def read_chat_template(folder: Path) -> ChatTemplate | None:
    """Return the chat template beside a `tokenizer.json`; None if there is none.

    Raises:
        InputError: a file is invalid.
    """
    config = read_json_object(folder / CONFIG_FILE)
    path = folder / TEMPLATE_FILE
    source = path.read_text(encoding="utf-8") if path.is_file() else config.get("chat_template")
    if isinstance(source, list):  # several with names, as transformers once saved them
        source = {each["name"]: each["template"] for each in source}.get("default")
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


class LanguageTag(NamedTuple):
    """The special token that requests a target language.

    Attributes:
        language: its code, such as `de`.
        token: as spelled in the vocabulary.
        id: its token ID.
    """

    language: str
    token: str
    id: int


def format_language_tag(language: str) -> str:
    """Return the special token of a language, such as `<2de>`."""
    return f"<2{language}>"


def find_language_tags(tokenizer: Tokenizer) -> dict[str, LanguageTag]:
    """Return the language tags of a tokenizer, by language."""
    return {
        match[1]: LanguageTag(match[1], token, index)
        for token, index in tokenizer.special_tokens.items()
        if (match := re.fullmatch("<2(.+)>", token))
    }


def choose_language_tag(
    tokenizer: Tokenizer, language: str | None, *, file_language: str | None = None, has_tags: bool = True
) -> LanguageTag | None:
    """Return the tag of a target language; None if the model has a single direction.

    Args:
        file_language: the language in a file name, used if none is requested. Ignored with a single direction.
        has_tags: whether the model was trained with the tags of its tokenizer; one trained in a single direction with
            the tokenizer of another run was not.

    Raises:
        UsageError: the model has several directions and none is requested, or not the requested one.
    """
    tags = find_language_tags(tokenizer) if has_tags else {}
    language = language or (file_language if tags else None)
    if not (tags or language):
        return None
    if language not in tags:
        known = ", ".join(sorted(tags))
        raise UsageError(f"target languages (to): {known}" if tags else "this model has one target language: name none")
    return tags[language]


@dataclass(frozen=True, slots=True)
class SpecialTokenFrame:
    """The special tokens around a text."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.before) + len(self.after)

    def wrap(self, *texts: Sequence[int] | NDArray[Any]) -> NDArray[np.int64]:
        """Concatenate texts and add the special tokens: (tokens,) IDs."""
        return np.concatenate([np.asarray(ids, dtype=np.int64) for ids in (self.before, *texts, self.after)])


class PairSpecialTokens(NamedTuple):
    """The special tokens around a source and its target.

    Attributes:
        source: around the encoder input.
        target: around what the decoder predicts.
        start: the first decoder input.
    """

    source: SpecialTokenFrame
    target: SpecialTokenFrame
    start: int


def build_text_frame(tokenizer: Tokenizer) -> SpecialTokenFrame:
    """Return the start and end tokens of a text, as far as the tokenizer has them."""
    start, end = tokenizer.start_of_text, tokenizer.end_of_text
    return SpecialTokenFrame(() if start is None else (start,), () if end is None else (end,))


def build_example_frame(tokenizer: Tokenizer) -> SpecialTokenFrame:
    """Return the special tokens before a prompt and after its completion.

    Raises:
        UsageError: the tokenizer has no end token.
    """
    frame = build_text_frame(tokenizer)
    if not frame.after:
        raise UsageError("the tokenizer has no end-of-text token, which completions and translations need")
    return frame


def build_pair_frames(
    tokenizer: Tokenizer, source_tokenizer: Tokenizer | None = None, *, tag: LanguageTag | None = None
) -> PairSpecialTokens:
    """Return the special tokens around a source and its target.

    Args:
        tokenizer: of the targets; of the sources too, unless they have their own.
        source_tokenizer: of the sources, if separate.
        tag: requests the target language, in a model with several directions.

    Raises:
        UsageError: a tokenizer has no end token.
    """
    target, source = build_example_frame(tokenizer), build_example_frame(source_tokenizer or tokenizer)
    before = () if tag is None else (tag.id,)
    return PairSpecialTokens(
        SpecialTokenFrame(before, source.after), SpecialTokenFrame((), target.after), target.before[0]
    )


def require_mask_token(tokenizer: Tokenizer) -> int:
    """Return the mask token; UsageError if there is none."""
    if tokenizer.mask is None:
        raise UsageError(f"the tokenizer has no {MASK} token, which a masked model needs")
    return tokenizer.mask
