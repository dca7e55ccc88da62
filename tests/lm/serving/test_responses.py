"""Responses are JSON in UTF-8, with log-probabilities as OpenAI has them, and counts as Prometheus reads them."""

import tokenizers
from tokenizers import decoders, models

from lm.decoding.batching import Continuation
from lm.serving.inspection import ScoredIds
from lm.serving.responses import (
    TextLogprobs,
    continuation_tokens,
    mean_logprob,
    prompt_tokens,
)
from lm.tokenizer.tokenizer import Tokenizer
from tests.cli.small_runs import make_tokenizer


def test_offsets_count_the_characters_before_a_token():
    """From the start of the prompt's text; a character of several tokens is complete with its last one."""
    tokenizer, text = make_tokenizer("byte"), "aü狐b"
    ids, first = tokenizer.encode(text), 7
    tokens = [(token, -0.5, ((token, -0.5),), 0) for token in ids]
    logprobs = TextLogprobs(tokenizer, first)
    found = logprobs.format(tokens[:2])
    for name, values in logprobs.format(tokens[2:]).items():
        found[name] += values
    ends = [len(tokenizer.decode(ids[:n]).rstrip("\ufffd")) for n in range(len(ids))]
    assert found["text_offset"] == [first + end for end in ends] == [7, 8, 8, 9, 9, 9, 10]
    assert found["tokens"] == ["a", *(rf"bytes:\x{byte:02x}" for byte in "ü狐".encode()), "b"]
    assert found["token_logprobs"] == [-0.5] * 7
    assert found["top_logprobs"] == [{text: -0.5} for text in found["tokens"]]


def test_a_first_token_that_starts_in_the_prompt_has_an_offset_there():
    tokenizer = make_tokenizer("bpe")
    (token, *_) = tokenizer.encode("owl")
    spelled = tokenizer.token_bytes(token).decode()
    sample = Continuation(tokens=[token, token], logprobs=[-1.0, -2.0], alternatives=[(), ()], prompt_bytes=1)
    found = TextLogprobs(tokenizer, 5).format(continuation_tokens(sample))
    assert found["text_offset"] == [4, 5 + len(spelled) - 1]
    assert mean_logprob(sample) == -1.5
    assert mean_logprob(Continuation()) == 0


def test_every_alternative_is_in_the_answer():
    """A part of a character has no text, and is spelled by its bytes."""
    tokenizer = make_tokenizer("byte")
    best = tuple((token, -1.0 - rank) for rank, token in enumerate(dict.fromkeys(tokenizer.encode("üßa"))))
    found = TextLogprobs(tokenizer).format([(best[0][0], None, best, 0), (best[0][0], -1.0, best, 0)])
    spelled = {r"bytes:\xc3": -1.0, r"bytes:\xbc": -2.0, r"bytes:\x9f": -3.0, "a": -4.0}
    assert found["top_logprobs"] == [None, spelled]


def test_tokens_of_equal_text_are_told_by_their_ids():
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "<0x61>": 1, "b": 2}, [], byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    best = ((0, -1.0), (1, -2.0), (2, -3.0))
    found = TextLogprobs(Tokenizer(backend)).format([(0, -1.0, best, 0)])
    assert found["top_logprobs"] == [{"a": -1.0, "token_id:1": -2.0, "b": -3.0}]


def test_a_scored_prompt_has_its_log_probabilities():
    scored = ScoredIds([3, 4], [None, 0.5], [None, 1], [[], [(4, -0.5)]])
    assert prompt_tokens(scored) == [(3, None, (), 0), (4, -0.5, ((4, -0.5),), 0)]
