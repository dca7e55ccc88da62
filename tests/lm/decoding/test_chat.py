"""Chats with a model that was never trained: which turns it reads, and which messages stay."""

from __future__ import annotations

import functools

import pytest

from lm.config.inference import SamplingConfig
from lm.config.model import ModelConfig
from lm.corpus.encode import encode_prompt
from lm.decoding.chat import Chat, fit_into_context
from lm.decoding.generator import Generator
from lm.model import DecoderOnly, build_model
from lm.text import Part
from lm.tokenizer import Tokenizer
from lm.tokenizer.chat_template import ChatTemplate
from tests.cli.small_runs import make_tokenizer
from tests.lm.chat_families import mistral

CONTEXT = 96
TOKENIZER = make_tokenizer("byte").with_chat_template()


@functools.cache
def model(tokenizer: Tokenizer) -> DecoderOnly:
    shape = {"context_length": CONTEXT, "d_model": 16, "n_layers": 1, "n_heads": 2, "init_std": 0.3}
    built = build_model(ModelConfig(vocab_size=tokenizer.vocab_size, **shape), seed=3).eval()
    assert isinstance(built, DecoderOnly)
    return built


def open_chat(*messages: Part, is_text: bool = False, **settings) -> Chat:
    letters = tuple(f"{token}=30" for token in TOKENIZER.encode("abcdefgh"))
    config = SamplingConfig(**{"seed": 1, "max_tokens": 6, "logit_bias": letters, **settings})
    return Chat(Generator(model(TOKENIZER), TOKENIZER, config), messages=messages, is_text=is_text)


def say(chat: Chat, text: str) -> str:
    return "".join(event.text for event in chat.reply(text))


@pytest.mark.parametrize("max_tokens", [1000, 5])
@pytest.mark.parametrize("dropped", [0, 3])
@pytest.mark.parametrize("lengths", [[1] * 12, [9] * 12, [1, 9, 1, 30, 2, 5, 8, 1, 9, 3], [40, 1], [2], [56, 1]])
def test_as_few_turns_as_needed_are_dropped(lengths, dropped, max_tokens):
    """Compared with a search turn by turn; the system prompt has 4 tokens, and the last message stays."""
    turns = [Part(role, text) for length in lengths for role, text in (("user", "x" * length), ("assistant", "y"))]

    def encode(some):
        return [0] * sum(len(each.text) for each in some)

    messages = [Part("system", "s" * 4), *turns[:-1]]
    prompt, found = fit_into_context(messages, encode, context=64, max_tokens=max_tokens, dropped=dropped)
    sizes = [4 + sum(lengths[number:]) + len(lengths) - 1 - number for number in range(len(lengths))]
    first, most = min(dropped, len(lengths) - 1), 48 if max_tokens > 16 else 59
    fits = [number for number in range(first, len(lengths)) if sizes[number] <= (most if number == first else 32)]
    assert found == (fits[0] if fits else len(lengths) - 1)
    assert len(prompt) == sizes[found]


@pytest.mark.parametrize("is_text", [True, False])
def test_a_reply_is_that_to_the_whole_conversation(is_text):
    """The cache of earlier turns changes none, and each reply has random numbers of its own."""
    chat, messages = open_chat(is_text=is_text), []
    for number, text in enumerate(("ab", "abc", "b")):
        again = open_chat(*messages, is_text=is_text)
        again._replies = number
        assert say(chat, text) == say(again, text)
        assert chat.messages == again.messages
        assert [message.role for message in chat.messages] == ["user", "assistant"] * (number + 1)
        messages = list(chat.messages)
    assert chat.undo() == "b"
    assert chat.messages == messages[:-2]
    if is_text:
        assert chat.transcript() == f"ab{messages[1].text}\nabc{messages[3].text}"


def test_a_text_longer_than_the_context_is_continued():
    chat = open_chat(is_text=True)
    assert say(chat, "a" * (2 * CONTEXT)) == chat.generator.samples("a" * (2 * CONTEXT))[0].text


def test_after_undoing_turns_earlier_ones_are_read_again():
    chat = open_chat()
    while not chat.dropped:
        say(chat, "abc")
    for _ in range(2):
        chat.undo()
    again = open_chat(*chat.messages)
    again._replies = chat._replies
    assert say(chat, "b") == say(again, "b")
    assert chat.dropped == again.dropped == 0


@pytest.mark.parametrize("supervised", [True, False])
def test_a_reply_and_a_sample_are_decoded_after_the_generation_prompt(supervised):
    """Which is text in Mistral's template, so that the reply begins with a space."""
    family = mistral()
    tokenizer = Tokenizer(family.backend, chat_template=ChatTemplate(family.template, {"bos_token": "<s>"}))
    (word,) = tokenizer.encode("the")
    settings = SamplingConfig(logit_bias=(f"{word}=30",), max_tokens=3)
    chat = Chat(Generator(model(tokenizer), tokenizer, settings, follows_examples=supervised))
    assert say(chat, "Hi") == " the the the"
    (sample,) = chat.generator.samples(encode_prompt(chat.messages[:1], tokenizer))
    assert sample.text == " the the the"
