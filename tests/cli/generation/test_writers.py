import json
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from cli.generation.writers import GenerationTimer, JsonLinesWriter, TextWriter, write_hypotheses
from lm.config.decoding import SamplingConfig
from lm.decoding.batching import Continuation, Finish, Token
from lm.decoding.generator import Generator
from lm.decoding.sampling import Sampler
from lm.decoding.speculative import AcceptanceStats
from lm.engine.pytorch import TorchEngine
from lm.engine.selection import EnginePlan
from tests.cli.small_runs import make_tokenizer

# Three samples generated in a batch: the second ends first.
EVENTS = (
    Token(0, 5, -0.5, "on"), Token(1, 6, -1.0, "two"), Token(2, 7, -1.5, "th"),
    Token(0, 8, -2.0, "e"), Token(1, 9, -2.5, ""), Finish(1, "end_of_text", " and\n"), Token(2, 5, -3.0, "re"),
    Finish(0, "length"), Token(2, 6, -3.5, "e"), Finish(2, "stop"),
)  # fmt: skip


@pytest.fixture
def generator():
    """Without a model: nothing is drawn."""
    return Generator(None, make_tokenizer("byte"), SamplingConfig(seed=7))


def written_after_each(output, samples, capsys):
    """What was written up to each event."""
    seen, written = "", []
    for event in EVENTS:
        samples[event.row].append(event)
        output.write_new()
        seen += capsys.readouterr().out
        written.append(seen)
    return written


def test_samples_are_written_in_order_as_far_as_they_are_known(capsys):
    samples = [Continuation() for _ in range(3)]
    written = written_after_each(TextWriter(samples, "Go "), samples, capsys)
    assert written[0] == "Go on"
    assert written[-4] == "Go one"
    assert written[-3] == "Go one\n<|endoftext|>\nGo two and\n<|endoftext|>\nGo thre"
    assert written[-1] == "Go one\n<|endoftext|>\nGo two and\n<|endoftext|>\nGo three\n"
    assert all(after.startswith(before) for before, after in pairwise(written))


def test_json_is_written_a_finished_sample_a_line(capsys, generator):
    samples = [Continuation() for _ in range(3)]
    written = written_after_each(JsonLinesWriter(samples, "Go ", generator, alternatives=False), samples, capsys)
    assert written[-4] == ""
    assert written[-3].count("\n") == 2
    first, second, third = map(json.loads, written[-1].splitlines())
    assert first == {
        "prompt": "Go ", "text": "one", "tokens": [5, 8], "logprobs": [-0.5, -2.0], "finish_reason": "length", "seed": 7
    }  # fmt: skip
    assert (second["text"], third["text"]) == ("two and\n", "three")


def test_alternatives_are_spelled_by_the_tokenizer(capsys, generator):
    (letter,) = generator.tokenizer.encode("o")
    sample = Continuation("o", [letter], [-0.5], [((letter, -0.5), (0, -1.5))], "length")
    JsonLinesWriter([sample], "", generator, alternatives=True).write_new()
    (alternatives,) = json.loads(capsys.readouterr().out)["alternatives"]
    assert alternatives[0] == {"token": letter, "text": "o", "logprob": -0.5}
    assert [one["logprob"] for one in alternatives] == [-0.5, -1.5]


def test_interrupted_samples_are_written_as_far_as_generated(capsys, generator):
    ids = generator.tokenizer.encode("ab")
    samples = [Continuation("a", ids, [-1.0, -1.0]), Continuation("", ids[:1], [-1.0]), Continuation()]
    output = TextWriter(samples, "")
    output.write_new()
    output.interrupt(generator, [])
    assert capsys.readouterr().out == "ab\n<|endoftext|>\na\n<|endoftext|>\n"
    assert [sample.finish_reason for sample in samples] == ["interrupted", "interrupted", None]


def test_results_of_a_search_have_their_scores(capsys):
    found = [
        Continuation("one\n", [1], [-0.5], [], "end_of_text", -0.5),
        Continuation("two", [2], [-1.0], [], "length", -1),
    ]
    write_hypotheses(found, "Go ", as_json=False)
    assert capsys.readouterr().out == "Go one\n<|endoftext|>\nGo two\n"
    write_hypotheses(found, "Go ", as_json=True)
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert list(first) == ["prompt", "text", "tokens", "logprobs", "score", "finish_reason"]
    assert (first["score"], second["score"], second["prompt"]) == (-0.5, -1, "Go ")


def engines(dtype: str) -> EnginePlan:
    """A plan of PyTorch alone, for a model of a type."""
    weights = torch.zeros(1, dtype=getattr(torch, dtype))
    model = SimpleNamespace(output_layer=(weights, None))
    return EnginePlan(model, "rows", TorchEngine(model), None, {}, "no code is compiled yet")


def test_prefill_ends_with_the_first_token_and_the_speed_is_that_of_the_rest(capsys, monkeypatch):
    clock = iter([100.0, 102.0, 106.0])
    monkeypatch.setattr("time.perf_counter", clock.__next__)
    watch = GenerationTimer()
    watch.record_token()
    watch.record_token()
    watch.report(2, Sampler(greedy=True), AcceptanceStats(), engines=engines("float32"))
    assert capsys.readouterr().err.startswith("2 tokens, 0 tokens/s after 2.0 s of prefill, ")  # half a token a second
    clock = iter([0.0, 0.5, 4.5])
    monkeypatch.setattr("time.perf_counter", clock.__next__)
    watch = GenerationTimer()
    watch.record_token()
    watch.report(20, Sampler(greedy=True), AcceptanceStats(), engines=engines("float32"))
    printed = capsys.readouterr().err
    assert printed.startswith("20 tokens, 5 tokens/s after 0.5 s of prefill, ")
    assert "draft" not in printed


def test_on_a_terminal_the_prompt_is_bold_and_what_controls_it_is_a_symbol(terminal):
    screen = terminal(80)
    TextWriter([Continuation("b\x1b", [1], [-1.0], [], "length")], "a\x07").write_new()
    assert screen.getvalue() == "\x1b[1ma␇\x1b[0mb␛\n"


def test_the_timer_reports_dtype_and_seed(capsys):
    watch = GenerationTimer()
    watch.record_token()
    watch.report(1, Sampler(seed=9), AcceptanceStats(), engines=engines("int8"))
    assert "1 tokens, – after" in (printed := capsys.readouterr().err)
    assert printed.endswith("int8, PyTorch (no code is compiled yet), seed 9\n")
    watch.report(20, Sampler(greedy=True), AcceptanceStats(8, 6), engines=engines("float32"))
    printed = capsys.readouterr().err
    assert "seed" not in printed
    assert "accepted 6 of 8 draft tokens" in printed
