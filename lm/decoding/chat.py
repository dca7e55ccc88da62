"""Chats: a conversation with one model, turn by turn.

The KV cache is kept between turns, so only new tokens are prefilled. When the context is full, the oldest turns are
left out of what the model reads; the system prompt stays.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from collections.abc import Generator as Events
from functools import partial

from lm.decoding.batching import Finish, Token, decode
from lm.decoding.generator import Generator
from lm.errors import UsageError
from lm.text.records import Part
from lm.tokenizer.chat_template import PLAIN_STOP, PLAIN_TEMPLATE, ChatTemplate

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
    head = 1 if messages[0].role == "system" else 0
    last = (len(messages) - head - 1) // 2

    def encode_without(turns: int) -> list[int]:
        return encode([*messages[:head], *messages[head + 2 * turns :]])

    dropped = min(dropped, last)
    prompt, most = encode_without(dropped), context - min(max_tokens, int(_REPLY_FRACTION * context))
    if len(prompt) > most and dropped < last:
        most = min(most, int(_KEPT_FRACTION * context))  # so that not each turn drops one
        fewer = range(dropped + 1, last)
        dropped += 1 + bisect_left(fewer, True, key=lambda turns: len(encode_without(turns)) <= most)
        prompt = encode_without(dropped)
    if len(prompt) >= context:
        raise UsageError(
            f"the message is too long: with system prompt and chat template it has {len(prompt)} tokens, and the "
            f"context is {context}"
        )
    return prompt, dropped


class Chat:
    """A conversation with a model.

    Attributes:
        dropped: number of turns that the model no longer reads, the oldest ones.
        template: of the tokenizer, or a plain one for a model that learned no conversations.
    """

    def __init__(self, generator: Generator, *, messages: Sequence[Part] = ()) -> None:
        """Start a conversation, or continue one that ends with the assistant; `generator` has model and settings."""
        self.generator, self.messages, self.dropped = generator, list(messages), 0
        template, start = generator.tokenizer.chat_template, generator.tokenizer.start_token
        self.template = ChatTemplate.default(start, PLAIN_TEMPLATE) if template is None else template
        self._replies = 0

    @property
    def has_template(self) -> bool:
        return self.generator.tokenizer.chat_template is not None

    @property
    def system(self) -> str | None:
        return self.messages[0].text if self.messages and self.messages[0].role == "system" else None

    @system.setter
    def system(self, text: str | None) -> None:
        """Replace the system prompt, or remove it."""
        others = self.messages[1:] if self.system is not None else self.messages
        self.messages = [*([Part("system", text)] if text else []), *others]

    def reply(self, content: str) -> Events[Token | Finish, None, None]:
        """Add a message of the user, and sample a reply; it is added when it ends, or when the iterator is closed.

        If there is no reply, the message of the user is removed again.

        Raises:
            InputError: the template refuses the messages, or a character has no token.
            UsageError: the message and the system prompt alone exceed the context.
        """
        self.messages.append(Part("user", content))
        text, generator, config = "", self.generator, self.generator.config
        context = generator.model.config.context_length
        try:
            prompt, self.dropped = fit_into_context(
                self.messages, partial(self.template.encode, generator.tokenizer), context=context,
                max_tokens=config.max_tokens, dropped=self.dropped,
            )  # fmt: skip
            sample = generator.build_sample(
                prompt, generator.sampler.rng(self._replies, prompt=prompt),
                max_tokens=min(config.max_tokens, context - len(prompt)),
                stop=config.stop if self.has_template else (*config.stop, PLAIN_STOP),
            )  # fmt: skip
            self._replies += 1
            for event in decode(generator.open_session(generator.plan(), prompt[:-1]), [sample], batch_size=1):
                text += event.text
                yield event
        finally:
            if text.strip():
                self.messages.append(Part("assistant", text.strip()))
            else:
                self.messages.pop()

    def undo(self) -> str | None:
        """Remove the last message of the user with its reply, and return it; None if there is none."""
        while self.messages and self.messages[-1].role != "system":
            if (last := self.messages.pop()).role == "user":
                return last.text
        return None
