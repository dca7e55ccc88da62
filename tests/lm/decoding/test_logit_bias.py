import math

import pytest

from lm.decoding.logit_bias import read_biases
from lm.errors import InputError, UsageError
from tests.cli.small_runs import make_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer("bpe")


def test_ids_and_texts_with_values(tokenizer):
    owl = tuple(tokenizer.encode(" owl"))
    long = tuple(tokenizer.encode("the fox ran"))
    assert len(long) > 1
    assert read_biases(["7=-1.5", " owl=2", "the fox ran=-inf"], tokenizer) == {(7,): -1.5, owl: 2, long: -math.inf}
    assert read_biases(["a=b=1"], tokenizer) == {tuple(tokenizer.encode("a=b")): 1}
    assert read_biases(["7=1", "7=2"], tokenizer) == {(7,): 2}


@pytest.mark.parametrize("written", ["owl", "=1", "owl=", "owl=much", "owl=nan", "owl=inf", "100000=1"])
def test_what_cannot_be_used_is_named(tokenizer, written):
    with pytest.raises(UsageError, match="--logit-bias") as caught:
        read_biases([written], tokenizer)
    assert written.partition("=")[0] in str(caught.value)


def test_a_text_without_tokens_is_an_error():
    with pytest.raises(InputError, match="Q"):
        read_biases(["Q=1"], make_tokenizer("char"))
