"""Chats with a model that was never trained: which turns it reads, and which messages stay."""

from __future__ import annotations

import functools

import pytest

from lm.config.decoding import SamplingConfig
from lm.config.model import ModelConfig
from lm.decoding.chat import Chat, fit_into_context
from lm.decoding.generator import Generator
from lm.model.transformer import DecoderOnly, build_model
from lm.text.records import Part
from lm.tokenizer.chat_template import ChatTemplate
from lm.tokenizer.tokenizer import Tokenizer
from tests.cli.small_runs import make_tokenizer
from tests.lm.chat_families import mistral

CONTEXT = 96


@functools.cache
def model() -> DecoderOnly:
    tokenizer = make_tokenizer("byte").with_chat_template()
    config = ModelConfig(vocab_size=tokenizer.vocab_size, context_length=CONTEXT, d_model=16, n_layers=1, n_heads=2,
                         init_std=0.3)  # fmt: skip
    built = build_model(config, seed=3).eval()
    assert isinstance(built, DecoderOnly)
    return built


def open_chat(*messages: Part, has_template: bool = True, **settings) -> Chat:
    tokenizer = make_tokenizer("byte")
    letters = tuple(f"{token}=30" for token in tokenizer.encode("abcdefgh"))
    config = SamplingConfig(**{"seed": 1, "max_tokens": 6, "logit_bias": letters, **settings})
    return Chat(
        Generator(model(), tokenizer.with_chat_template() if has_template else tokenizer, config), messages=messages
    )


def say(chat: Chat, text: str) -> str:
    return "".join(event.text for event in chat.reply(text))


@pytest.mark.parametrize("max_tokens", [1000, 5])
@pytest.mark.parametrize("system", [[Part("system", "s" * 4)], []], ids=["system", "none"])
@pytest.mark.parametrize("dropped", [0, 3])
@pytest.mark.parametrize(
    "lengths", [[1] * 12, [9] * 12, [1, 9, 1, 30, 2, 5, 8, 1, 9, 3], [40, 1], [2], [42, 1], [56, 1]]
)
def test_as_few_turns_as_needed_are_dropped(lengths, dropped, system, max_tokens):
    """Compared with a search turn by turn; the system prompt has 4 tokens, and the last message stays."""
    context = 64
    turns = [Part(role, text) for length in lengths for role, text in (("user", "x" * length), ("assistant", "y"))]

    def encode(some):
        return [0] * sum(len(each.text) for each in some)

    prompt, found = fit_into_context(
        [*system, *turns[:-1]], encode, context=context, max_tokens=max_tokens, dropped=dropped
    )
    sizes = [4 * len(system) + sum(lengths[number:]) + len(lengths) - 1 - number for number in range(len(lengths))]
    first, most = min(dropped, len(lengths) - 1), 48 if max_tokens > 16 else 59
    fits = [number for number in range(first, len(lengths)) if sizes[number] <= (most if number == first else 32)]
    assert found == (fits[0] if fits else len(lengths) - 1)
    assert len(prompt) == sizes[found]


@pytest.mark.parametrize("has_template", [True, False])
def test_a_reply_is_that_to_the_whole_conversation(has_template):
    """The cache of earlier turns changes none, and each reply has random numbers of its own."""
    chat, messages = open_chat(has_template=has_template), []
    for number, text in enumerate(("ab", "abc", "b")):
        again = open_chat(*messages, has_template=has_template)
        for _ in range(number):
            say(again, "x")
            again.undo()
        assert say(chat, text) == say(again, text)
        assert chat.messages == again.messages
        assert [message.role for message in chat.messages] == ["user", "assistant"] * (number + 1)
        messages = list(chat.messages)
    retried = chat.undo()
    assert retried == "b"
    assert chat.messages == messages[:-2]


def test_a_stop_string_ends_a_reply_and_so_does_the_next_turn_of_a_transcript():
    """Of a model that has learned no conversations, and is made to write one here."""
    whole = say(open_chat(), "ab")
    assert say(open_chat(stop=(whole[2:4],)), "ab") == whole[: whole.index(whole[2:4])]
    spelled = tuple(f"{pair}=99" for pair in ("a\n", "\nU", "Us", "se", "er", "r:"))
    settings = {"logit_bias": ("a=50", *spelled), "max_tokens": 8}
    assert say(open_chat(has_template=False, **settings), "ab") == "a"
    assert say(open_chat(**settings), "ab") == "a\nUser:a"


@pytest.mark.parametrize("supervised", [True, False])
def test_a_reply_and_a_sample_are_decoded_after_the_generation_prompt(supervised):
    """Which is text in Mistral's template, so that the reply begins with a space."""
    family = mistral()
    tokenizer = Tokenizer(family.backend, chat_template=ChatTemplate(family.template, {"bos_token": "<s>"}))
    config = ModelConfig(vocab_size=tokenizer.vocab_size, context_length=CONTEXT, d_model=16, n_layers=1, n_heads=2)
    built = build_model(config, seed=3).eval()
    assert isinstance(built, DecoderOnly)
    (word,) = tokenizer.encode("the")
    settings = SamplingConfig(logit_bias=(f"{word}=30",), max_tokens=3)
    chat = Chat(Generator(built, tokenizer, settings, follows_examples=supervised))
    assert say(chat, "Hi") == " the the the"
    (sample,) = chat.generator.samples(tokenizer.chat_template.encode(tokenizer, chat.messages[:1]))
    assert sample.text == " the the the"


def test_the_system_prompt_is_replaced_or_removed():
    chat = open_chat(Part("user", "a"), Part("assistant", "b"))
    assert chat.system is None
    for text in ("Be brief.", "Be kind."):
        chat.system = text
        assert (chat.system, chat.messages[0]) == (text, Part("system", text))
        assert len(chat.messages) == 3
    chat.system = None
    assert chat.messages == [Part("user", "a"), Part("assistant", "b")]
    assert chat.undo() == "a"
    assert chat.undo() is None
    chat.system = "Be brief."
    assert chat.undo() is None
    assert chat.system == "Be brief."
