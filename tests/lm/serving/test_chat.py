"""The chat API, as the official client of OpenAI uses it."""

import codecs

import pytest

from lm.config.inference import SamplingConfig
from lm.config.run_config import END_OF_TEXT, HardwareConfig, TokenizerConfig
from lm.corpus.encode import encode_prompt
from lm.decoding.generator import Generator
from lm.engine import load_for_decoding
from lm.text import parse_messages
from lm.tokenizer import training
from tests.cli.small_runs import TEXT, make_run
from tests.lm.serving.conftest import served

openai = pytest.importorskip("openai")
pytest.importorskip("uvicorn")

MESSAGES = [{"role": "system", "content": "The fox."}, {"role": "user", "content": "the owl saw?"}]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    tokenizer = training.train(
        [TEXT], TokenizerConfig(vocab_size=300), corpus_bytes=len(TEXT.encode()),
        special_tokens=(END_OF_TEXT,),
    ).with_chat_template()  # fmt: skip
    make_run(folder / "chat", tokenizer=tokenizer, context_length=64)
    make_run(folder / "long", tokenizer=tokenizer, context_length=300)
    return folder


@pytest.fixture(scope="module")
def client(runs):
    with (
        served(runs / "chat", runs / "long") as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def ask(client, **settings):
    return client.chat.completions.create(
        **{"model": "chat", "messages": MESSAGES, "seed": 3, "max_tokens": 20} | settings
    )


def test_a_reply_continues_the_rendered_messages(client, runs):
    loaded = load_for_decoding(runs / "chat", HardwareConfig(threads=1))
    ids = encode_prompt(parse_messages(MESSAGES), loaded.tokenizer)
    generator = Generator(loaded.model, loaded.tokenizer, SamplingConfig(seed=3, max_tokens=20))
    expected = generator.samples(ids, n=3)
    given = ask(client, n=3)
    assert [choice.message.content for choice in given.choices] == [sample.text for sample in expected]
    assert {choice.message.role for choice in given.choices} == {"assistant"}
    assert given.usage.prompt_tokens == len(ids)


def test_a_reply_goes_on_to_its_end_or_that_of_the_context(client):
    usage = ask(client, model="long", max_tokens=None, extra_body={"ignore_eos": True}).usage
    assert usage.total_tokens == 300


def test_a_stream_has_the_same_reply(client):
    whole = ask(client, n=2)
    contents, roles, reasons = ["", ""], set(), {}
    for part in ask(client, n=2, stream=True, stream_options={"include_usage": True}):
        for choice in part.choices:
            contents[choice.index] += choice.delta.content or ""
            roles.add(choice.delta.role)
            reasons[choice.index] = choice.finish_reason
    assert contents == [choice.message.content for choice in whole.choices]
    assert roles == {"assistant", None}
    assert list(reasons.values()) == [choice.finish_reason for choice in whole.choices]
    assert part.usage == whole.usage


def test_log_probabilities_have_bytes_and_alternatives(client):
    given = ask(client, logprobs=True, top_logprobs=2, max_completion_tokens=5, max_tokens=None)
    entries = given.choices[0].logprobs.content
    assert len(entries) == 5
    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # without a character that is cut
    text = decoder.decode(b"".join(bytes(entry.bytes) for entry in entries))
    assert text == given.choices[0].message.content
    assert all(len(entry.top_logprobs) == 2 for entry in entries)
    assert all(entry.logprob <= entry.top_logprobs[0].logprob + 1e-4 for entry in entries)


def test_the_oldest_turns_are_left_out_of_a_full_context(client):
    turns = [{"role": "user", "content": "The owl saw."}, {"role": "assistant", "content": "The fox."}]
    messages = [MESSAGES[0], *turns * 20, MESSAGES[1]]
    answer = ask(client, messages=messages)
    assert 0 < answer.dropped_turns < 20
    fewer = [MESSAGES[0], *turns * (20 - answer.dropped_turns), MESSAGES[1]]
    assert ask(client, messages=fewer).choices[0].message == answer.choices[0].message
    assert {part.dropped_turns for part in ask(client, messages=messages, stream=True)} == {answer.dropped_turns}
    assert ask(client).dropped_turns == 0
    with pytest.raises(openai.BadRequestError, match="context"):
        ask(client, messages=[{"role": "user", "content": "The owl saw. " * 50}])
