"""Tokenizers as llama.cpp has them, and those that it has not."""

import pytest
import tokenizers
from tokenizers import normalizers, pre_tokenizers

from lm.errors import UsageError
from lm.interop.gguf import build_vocabulary
from lm.tokenizer import Tokenizer
from tests.cli.small_runs import make_tokenizer
from tests.lm.interop.hugging_face.models import qwen2_tokenizer
from tests.lm.tokenizers_elsewhere import backend, cl100k_like, gpt2_like

CONTROL, UNUSED = 3, 5


def digits_like() -> tokenizers.Tokenizer:
    """As SmolLM has it: each digit alone."""
    made = gpt2_like()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    return made


def whole_words_like() -> tokenizers.Tokenizer:
    """As Llama 3 has it: a word that is a token is one."""
    made = cl100k_like()
    made.model.ignore_merges = True
    return made


KINDS = {
    "gpt-2": lambda: make_tokenizer("bpe"),
    "qwen2": qwen2_tokenizer,
    "smollm": lambda: Tokenizer(digits_like()),
    "llama-bpe": lambda: Tokenizer(whole_words_like()),
}


@pytest.mark.parametrize("words", KINDS)
def test_tokens_merges_and_special_tokens_are_those_of_the_tokenizer(words):
    tokenizer = KINDS[words]()
    found = build_vocabulary(tokenizer, tokenizer.vocab_size + 7)
    told = {key.removeprefix("tokenizer.ggml."): value for key, value in found.items()}
    assert told["pre"] == words
    size = tokenizer.vocab_size
    assert [tokenizer.token(index) for index in range(size)] == told["tokens"][:size]
    assert len(set(told["tokens"])) == len(told["tokens"]) == len(told["token_type"]) == size + 7
    assert told["token_type"][size:] == [UNUSED] * 7
    special = {index for index, kind in enumerate(told["token_type"]) if kind == CONTROL}
    assert special == set(tokenizer.special_tokens.values())
    merges = tokenizer.description["model"]["merges"]
    assert [tuple(rule.split(" ")) for rule in told["merges"]] == [tuple(rule) for rule in merges]
    assert told["bos_token_id"] == tokenizer.start_of_text
    assert told["eos_token_id"] == tokenizer.end_of_text
    assert told["add_bos_token"] is True


def test_the_chat_template_and_the_end_of_a_turn_are_kept():
    tokenizer = make_tokenizer("bpe").with_chat_template()
    settings = build_vocabulary(tokenizer, tokenizer.vocab_size)
    assert settings["tokenizer.chat_template"] == tokenizer.chat_template.source
    assert settings["tokenizer.ggml.eot_token_id"] == tokenizer.special_tokens["<|end|>"]
    assert settings["tokenizer.ggml.token_type"][tokenizer.special_tokens["<|user|>"]] == CONTROL
    without = build_vocabulary(make_tokenizer("bpe"), 1000)
    assert not any("template" in key or "eot" in key for key in without)


def changed(part: str, value: object) -> Tokenizer:
    made = gpt2_like()
    setattr(made, part, value)
    return Tokenizer(made)


OTHER_WORDS = pre_tokenizers.Sequence(
    [pre_tokenizers.Split(tokenizers.Regex(r"\w+"), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
)


@pytest.mark.parametrize(
    ("tokenizer", "named"),
    [(lambda: make_tokenizer("char"), "kind char"), (lambda: Tokenizer(backend("metaspace")), "spell bytes"),
     (lambda: changed("normalizer", normalizers.Lowercase()), "normalizer Lowercase"),
     (lambda: changed("pre_tokenizer", OTHER_WORDS), "pre_tokenizer"),
     (lambda: Tokenizer(backend("cl100k")), "pre_tokenizer")],
)  # fmt: skip
def test_tokenizers_that_llama_cpp_does_not_have_are_refused(tokenizer, named):
    made = tokenizer()
    with pytest.raises(UsageError, match=named):
        build_vocabulary(made, made.vocab_size)
