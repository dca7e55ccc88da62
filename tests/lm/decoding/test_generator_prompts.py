import pytest

from lm.decoding.generator import common_prefix, encode_continuation, encode_prompt, sort_by_length
from lm.errors import UsageError
from lm.text.prompts import Prompt


class Letters:
    """A tokenizer of 26 letters, as far as prompts go."""

    def __init__(self, start_of_text, end_of_text=None):
        self.start_of_text, self.end_of_text = start_of_text, end_of_text

    def encode(self, text):
        return [ord(letter) - ord("a") for letter in text]


def test_a_prompt_starts_with_the_start_token_if_there_is_one():
    assert encode_prompt(Letters(30), "cab") == [30, 2, 0, 1]
    assert encode_prompt(Letters(30), "") == [30]
    assert encode_prompt(Letters(None), "cab") == [2, 0, 1]


def test_an_empty_prompt_without_start_token_is_an_error():
    with pytest.raises(UsageError, match="give a prompt"):
        encode_prompt(Letters(None), "")
    with pytest.raises(UsageError, match="give a prompt"):
        encode_continuation(Letters(None), [], "")


def test_a_context_is_prolonged_by_a_text():
    assert encode_continuation(Letters(30), [], "cab") == encode_prompt(Letters(30), "cab")
    assert encode_continuation(Letters(30, 31), [30, 5], "cab") == [30, 5, 2, 0, 1]
    assert encode_continuation(Letters(None), [5], "") == [5]


def test_after_the_end_of_a_document_another_starts():
    assert encode_continuation(Letters(30, 31), [30, 5, 31], "cab") == [30, 5, 31, 30, 2, 0, 1]
    assert encode_continuation(Letters(30, 30), [30, 5, 30], "cab") == [30, 5, 30, 2, 0, 1]


def test_prompts_are_sorted_by_length():
    prompts = [Prompt(number, "x" * length, "") for number, length in enumerate([5, 1, 9, 5])]
    assert [prompt.number for prompt in sort_by_length(prompts)] == [1, 0, 3, 2]


@pytest.mark.parametrize(
    ("texts", "beginning"),
    [
        (["You are kind. Who?", "You are kind. When?", "You are kind. W"], "You are kind."),
        (["You are", "You are not"], "You"),
        (["a b"], ""),
        ([], ""),
        (["one", "other"], ""),
        (["same text", "same text"], "same"),
        (["", "a b"], ""),
    ],
)
def test_the_common_prefix_ends_with_a_word(texts, beginning):
    assert common_prefix(texts) == beginning
