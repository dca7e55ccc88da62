"""Responses are JSON in UTF-8, with log-probabilities as OpenAI has them, and counts as Prometheus reads them."""

import json

import pytest
import tokenizers
from tokenizers import decoders, models

from lm.decoding.batching import Continuation
from lm.serving.inspection import ScoredIds
from lm.serving.responses import (
    TextLogprobs,
    chat_logprobs,
    continuation_tokens,
    mean_logprob,
    prompt_tokens,
    to_event,
    to_json,
    usage,
)
from lm.serving.statistics import Histogram, Statistics
from lm.tokenizer.tokenizer import Tokenizer
from tests.cli.small_runs import make_tokenizer


def test_texts_are_readable_and_on_one_line():
    text = "".join(map(chr, range(0x3000))) + "狐\U0001f98a\ud800 \udfff"
    encoded = to_json({"text": text})
    assert json.loads(encoded) == {"text": text}
    assert len(encoded.decode().splitlines()) == 1
    assert "狐\U0001f98a" in encoded.decode()
    assert "ışık" in to_json(["ışık"]).decode()


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
    best = tuple((token, -float(rank)) for rank, token in enumerate(dict.fromkeys(tokenizer.encode("üßa")), start=1))
    chosen, _ = best[0]
    found = TextLogprobs(tokenizer).format([(chosen, None, best, 0), (chosen, -1.0, best, 0)])
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


def test_a_chat_has_the_bytes_of_each_token():
    tokenizer = make_tokenizer("byte")
    first, second = tokenizer.encode("ü")
    entry = {"token": "\ufffd", "logprob": -0.5, "bytes": [0xC3]}
    other = {"token": "\ufffd", "logprob": -2.0, "bytes": [0xBC]}
    assert chat_logprobs(tokenizer, [(first, -0.5, ((first, -0.5), (second, -2.0)))]) == {
        "content": [entry | {"top_logprobs": [entry, other]}], "refusal": None,
    }  # fmt: skip


def test_an_event_ends_with_an_empty_line():
    assert to_event(usage(3, 4)) == b'data: {"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}\n\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json(float("nan"))


def test_durations_are_counted_up_to_each_limit():
    histogram = Histogram()
    for seconds in (0.0, 0.01, 0.011, 1.0, 61.0):
        histogram.add(seconds)
    *buckets, total, count = histogram.format("wait")
    assert buckets[:3] == ['wait_bucket{le="0.01"} 2', 'wait_bucket{le="0.025"} 3', 'wait_bucket{le="0.05"} 3']
    assert buckets[5:7] == ['wait_bucket{le="0.5"} 3', 'wait_bucket{le="1.0"} 4']
    assert buckets[-2:] == ['wait_bucket{le="60.0"} 4', 'wait_bucket{le="+Inf"} 5']
    assert (total, count) == ("wait_sum 62.021000", "wait_count 5")


def test_requests_are_counted_by_path_and_status():
    """All paths but the known ones together, or a client could fill the memory."""
    statistics = Statistics({"/score"})
    for path, status in (("/score", 200), ("/a", 404), ("/b", 404), ("/score", 200), ("/score", 499)):
        statistics.count_request(path, status)
    statistics.first_token.add(0.5)
    lines = statistics.format([]).splitlines()
    assert lines[:4] == [
        "# TYPE lm_requests_total counter", 'lm_requests_total{path="/score",status="200"} 2',
        'lm_requests_total{path="/score",status="499"} 1', 'lm_requests_total{path="other",status="404"} 2',
    ]  # fmt: skip
    types = dict(line.split()[2:] for line in lines if line.startswith("#"))
    assert {name for name, kind in types.items() if kind == "gauge"} == {"lm_waiting", "lm_running", "lm_cache_rows"}
    assert {name for name, kind in types.items() if kind == "histogram"} == {
        "lm_first_token_seconds", "lm_between_tokens_seconds",
    }  # fmt: skip
    assert "lm_first_token_seconds_count 1" in lines
    assert "lm_between_tokens_seconds_count 0" in lines
