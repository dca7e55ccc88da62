"""Turns of a user and a model: a conversation, or a text that both write.

The KV cache is kept between turns, so only new tokens are prefilled. When the context is full, the oldest turns are
left out of what the model reads; the system prompt stays.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from collections.abc import Generator as Events
from functools import partial

from lm.corpus.encode import encode_prompt
from lm.decoding.batching import Finish, Token
from lm.decoding.generator import Generator
from lm.errors import UsageError
from lm.text import Part, Record

_REPLY_FRACTION, _KEPT_FRACTION = 0.25, 0.5
"""Of the context: room for a reply, before turns are left out; and what the others may take then."""


def fit_into_context(
    messages: Sequence[Part],
    encode: Callable[[Sequence[Part]], list[int]],
    *,
    context: int,
    max_tokens: int,
    dropped: int = 0,
) -> tuple[list[int], int]:
    """Return the tokens of messages, without as many of the oldest turns as needed, and the number of these turns.

    Args:
        messages: a system prompt, if any, which stays; then turns, the last one without a reply.
        encode: returns the tokens of messages and of the generation prompt.
        max_tokens: of the reply, which may take a quarter of the context at least.
        dropped: turns to leave out in any case.

    Raises:
        UsageError: the last message and the system prompt exceed the context.
    """
    head = int(messages[0].role == "system")
    last, most = (len(messages) - head - 1) // 2, context - min(max_tokens, int(_REPLY_FRACTION * context))
    dropped = min(max(dropped, last - context // 2), last)  # a message has a token at least

    def build(dropped: int) -> list[int]:
        return encode([*messages[:head], *messages[head + 2 * dropped :]])

    if len(prompt := build(dropped)) > most and dropped < last:
        kept = min(most, int(_KEPT_FRACTION * context))  # so that not each turn drops one
        dropped = bisect_left(range(last), -kept, lo=dropped + 1, key=lambda number: -len(build(number)))
        prompt = build(dropped)
    if len(prompt) >= context:
        raise UsageError(f"the message is too long: the prompt has {len(prompt)} tokens, and the context is {context}")
    return prompt, dropped


class Chat:
    """A conversation with a model, or a text that both continue.

    Attributes:
        dropped: number of turns that the model no longer reads, the oldest ones.
        is_text: whether the messages are parts of one text.
    """

    def __init__(self, generator: Generator, *, messages: Sequence[Part] = (), is_text: bool = False) -> None:
        """Start a conversation, or continue one that ends with the assistant; `generator` has model and settings.

        Raises:
            UsageError: the tokenizer has no chat template, and it is no text.
        """
        self.generator, self.messages, self.dropped, self.is_text = generator, list(messages), 0, is_text
        self._replies = 0
        if generator.tokenizer.chat_template is None and not is_text:
            raise UsageError("this model was not trained on conversations: it has no chat template")

    def reply(self, content: str) -> Events[Token | Finish, None, None]:
        """Add a message of the user, and sample a reply; it is added when it ends, or when the iterator is closed.

        Of a text, a message begins on a new line. If there is no reply, the message of the user is removed again.

        Raises:
            InputError: the template refuses the messages, or a character has no token.
            UsageError: the message and the system prompt alone exceed the context.
        """
        if self.is_text and content and self.messages and not self.messages[-1].text.endswith("\n"):
            content = "\n" + content
        self.messages.append(Part("user", content))
        text, generator, config = "", self.generator, self.generator.config
        context = generator.model.config.context_length
        try:
            if self.is_text:
                prompt, room = encode_prompt(self.transcript(), generator.tokenizer), config.text_limit
                healing = generator.find_healing(content, prompt)
            else:
                encode = partial(encode_prompt, tokenizer=generator.tokenizer)
                prompt, self.dropped = fit_into_context(
                    self.messages, encode, context=context, max_tokens=config.text_limit, dropped=self.dropped
                )
                healing, room = None, min(config.max_tokens or context, context - len(prompt))
            sample = generator.build_sample(prompt, self._replies, healing, max_tokens=room)
            self._replies += 1
            for event in generator.decode([sample], prefix=prompt[:-2] if healing else prompt[:-1]):
                text += event.text
                yield event
        finally:
            if text := text if self.is_text else text.strip():
                self.messages.append(Part("assistant", text))
            else:
                self.messages.pop()

    def undo(self) -> str | None:
        """Remove the last message of the user with its reply, and return it; None if there is none."""
        self.dropped = 0
        while self.messages and self.messages[-1].role != "system":
            if (last := self.messages.pop()).role == "user":
                return last.text.removeprefix("\n") if self.is_text else last.text
        return None

    def transcript(self) -> str:
        """Return the text, or the messages as a line of training data; UsageError if there are none."""
        if not self.messages or self.messages[-1].role == "system":
            raise UsageError("there is nothing to save")
        if self.is_text:
            return "".join(message.text for message in self.messages)
        return Record(tuple(self.messages)).to_json()
