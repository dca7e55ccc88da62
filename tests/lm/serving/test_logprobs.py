"""Log-probabilities of `/v1/completions` as OpenAI has them."""

import tokenizers
from tokenizers import decoders, models

from lm.decoding.batching import Token
from lm.serving.answers import Logprobs
from lm.tokenizer import Tokenizer
from tests.cli.small_runs import make_tokenizer


def test_offsets_count_the_characters_before_a_token():
    """From the start of the prompt's text; a character of several tokens is complete with its last one."""
    tokenizer, text = make_tokenizer("byte"), "aü狐b"
    ids, first = tokenizer.encode(text), 7
    tokens = [Token(0, token, -0.5, alternatives=((token, -0.5),)) for token in ids]
    logprobs = Logprobs(tokenizer, first)
    found = logprobs.format(tokens[:2])
    for name, values in logprobs.format(tokens[2:]).items():
        found[name] += values
    assert found["text_offset"] == [7, 8, 8, 9, 9, 9, 10]
    assert found["tokens"] == ["a", *(rf"bytes:\x{byte:02x}" for byte in "ü狐".encode()), "b"]
    assert found["top_logprobs"] == [{text: -0.5} for text in found["tokens"]]


def test_a_first_token_that_starts_in_the_prompt_has_an_offset_there():
    tokenizer = make_tokenizer("bpe")
    (token, *_) = tokenizer.encode("owl")
    spelled = tokenizer.token_bytes(token).decode()
    found = Logprobs(tokenizer, 5).format([Token(0, token, -1.0, prompt_bytes=1), Token(0, token, -2.0)])
    assert found["text_offset"] == [4, 5 + len(spelled) - 1]


def test_tokens_of_equal_text_are_told_by_their_ids():
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "<0x61>": 1, "b": 2}, [], byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    found = Logprobs(Tokenizer(backend)).format([Token(0, 0, -1.0, alternatives=((0, -1.0), (1, -2.0), (2, -3.0)))])
    assert found["top_logprobs"] == [{"a": -1.0, "token_id:1": -2.0, "b": -3.0}]
