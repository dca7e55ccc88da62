import math

import pytest
import tokenizers
import torch

from lm.config.decoding import SamplingConfig
from lm.decoding.sampling import History, Sampler, parse_logit_biases
from lm.errors import InputError, UsageError
from lm.tokenizer.tokenizer import Tokenizer
from tests.cli.small_runs import make_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer("bpe")


def test_ids_and_texts_with_values(tokenizer):
    owl = tuple(tokenizer.encode(" owl"))
    long = tuple(tokenizer.encode("the fox ran"))
    assert len(long) > 1
    assert parse_logit_biases(["7=-1.5", " owl=2", "the fox ran=-inf"], tokenizer) == {
        (7,): -1.5,
        owl: 2,
        long: -math.inf,
    }
    assert parse_logit_biases(["a=b=1"], tokenizer) == {tuple(tokenizer.encode("a=b")): 1}
    assert parse_logit_biases(["7=1", "7=2"], tokenizer) == {(7,): 2}


@pytest.mark.parametrize(
    "written",
    [
        "owl",
        "=1",
        "owl=",
        "owl=much",
        "owl=nan",
        "owl=inf",
        "100000=1",
        "5=1e39",
        "5=-1e21",
        pytest.param("1" + "0" * 5000 + "=1", id="5000 digits"),
    ],
)
def test_what_cannot_be_used_is_named(tokenizer, written):
    with pytest.raises(UsageError, match="=|no token") as caught:
        parse_logit_biases([written], tokenizer)
    assert written.partition("=")[0] in str(caught.value)


def test_a_text_without_tokens_is_an_error():
    with pytest.raises(InputError, match="Q"):
        parse_logit_biases(["Q=1"], make_tokenizer("char"))
    wordpiece = tokenizers.Tokenizer(tokenizers.models.WordPiece({"[UNK]": 0, "owl": 1}, unk_token="[UNK]"))
    wordpiece.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    with pytest.raises(UsageError, match=r"' =3': the tokenizer has no token for this text; give an ID"):
        parse_logit_biases([" =3"], Tokenizer(wordpiece))


@pytest.mark.parametrize("settings", [{}, {"temperature": 1e-6}, {"repetition_penalty": 0.01}, {"greedy": True}])
def test_the_greatest_biases_leave_numbers(settings):
    """Whatever they are multiplied by or divided by later, and several of them for a token."""
    biases = {(2,): 1e20, (1, 2): 1e20, (3,): -1e20}
    sampler = Sampler.from_config(SamplingConfig(**settings), biases)
    logits, before = torch.tensor([[5.0, 0.0, -5.0, 10.0]]), History(torch.tensor([[2, 1]]), 0)
    tokens, logprobs = sampler.sample(logits, [sampler.rng(0)], before)
    assert tokens.tolist() == [2]
    assert logprobs.isfinite().all()
