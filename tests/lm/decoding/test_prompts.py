import pytest

from lm.decoding.prompts import prolonged, prompt_ids
from lm.errors import UsageError


class Letters:
    """A tokenizer of 26 letters, as far as prompts go."""

    def __init__(self, start_of_text, end_of_text=None):
        self.start_of_text, self.end_of_text = start_of_text, end_of_text

    def encode(self, text):
        return [ord(letter) - ord("a") for letter in text]


def test_a_prompt_begins_with_the_start_token_if_there_is_one():
    assert prompt_ids(Letters(30), "cab") == [30, 2, 0, 1]
    assert prompt_ids(Letters(30), "") == [30]
    assert prompt_ids(Letters(None), "cab") == [2, 0, 1]


def test_nothing_to_begin_from_is_an_error_that_asks_for_a_prompt():
    with pytest.raises(UsageError, match="give a prompt"):
        prompt_ids(Letters(None), "")
    with pytest.raises(UsageError, match="give a prompt"):
        prolonged(Letters(None), [], "")


def test_a_context_is_prolonged_by_a_text():
    assert prolonged(Letters(30), [], "cab") == prompt_ids(Letters(30), "cab")
    assert prolonged(Letters(30, 31), [30, 5], "cab") == [30, 5, 2, 0, 1]
    assert prolonged(Letters(None), [5], "") == [5]


def test_after_the_end_of_a_document_another_starts():
    assert prolonged(Letters(30, 31), [30, 5, 31], "cab") == [30, 5, 31, 30, 2, 0, 1]
    assert prolonged(Letters(30, 30), [30, 5, 30], "cab") == [30, 5, 30, 2, 0, 1]
