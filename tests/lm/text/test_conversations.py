"""Conversations are read in the formats of OpenAI and ShareGPT; a wrong row is named with file, line and message."""

import json

import pytest

from lm.errors import InputError
from lm.text.conversations import Conversation, Message, parse_conversations, parse_messages
from lm.text.text_files import find_text_files

HI, HELLO = {"role": "user", "content": "Hi!"}, {"role": "assistant", "content": "Hello."}


def _read(path):
    (file,) = find_text_files([str(path)])
    return list(parse_conversations(file.rows(["messages"], example="")))


def _write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_both_formats_and_arrays_give_the_same_conversation(tmp_path):
    system = {"role": "system", "content": "Be brief."}
    openai = {"messages": [system, HI, HELLO]}
    sharegpt = {
        "conversations": [
            {"from": "system", "value": "Be brief."},
            {"from": "human", "value": "Hi!"},
            {"from": "gpt", "value": "Hello."},
        ]
    }
    parts = {"messages": [system, {"role": "user", "content": [{"type": "text", "text": "Hi!"}]}, HELLO]}
    expected = (Message("system", "Be brief."), Message("user", "Hi!"), Message("assistant", "Hello."))
    lines = _read(_write(tmp_path / "a.jsonl", openai, sharegpt, parts))
    assert lines == [Conversation(expected, line) for line in (1, 2, 3)]
    (tmp_path / "a.json").write_text(json.dumps([openai, sharegpt]), encoding="utf-8")
    assert [one.messages for one in _read(tmp_path / "a.json")] == [expected] * 2
    assert json.loads(lines[0].to_json()) == openai


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"text": "Hi!"}, "no field 'messages'; it has text"),
        ({"message": [HI, HELLO]}, "no field 'messages' (did you mean 'message'?); it has message"),
        ({"messages": "Hi!"}, "'messages' is not a list of messages but a text"),
        ({"messages": []}, "has no messages"),
        ({"messages": [HI, "Hello."]}, "message 2: not an object with 'role' and 'content' but a text"),
        ({"messages": [HI, {"role": "assistant"}]}, "message 2: no field 'content'"),
        ({"messages": [HI, {"role": "assistent", "content": "x"}]}, "message 2: role is 'assistent'"),
        ({"messages": [HI, {"role": "tool", "content": "x"}]}, "message 2: role is 'tool', not system, user or"),
        ({"messages": [HI, {"role": "assistant", "content": " \n"}]}, "message 2: content is empty"),
        ({"messages": [HI, {"role": "assistant", "content": 3}]}, "message 2: content is not text but a number"),
        ({"messages": [HI, {"role": "assistant", "content": None}]}, "message 2: content is not text but null"),
        ({"messages": [HI, {"role": "assistant", "content": [{"type": "image_url"}]}]}, "not text (image_url)"),
        ({"messages": [HELLO]}, "message 1: role is assistant, but user is next"),
        ({"messages": [HI, HI]}, "message 2: role is user, but assistant is next"),
        ({"messages": [HI, HELLO, {"role": "system", "content": "x"}]}, "message 3: role is system"),
        ({"messages": [HI]}, "ends with message 1 of the user"),
        ({"messages": [{"role": "system", "content": "x"}]}, "only a system prompt"),
        ({"conversations": [{"from": "bot", "value": "x"}]}, "message 1: from is 'bot', not human, user, gpt"),
        ({"messages": [HI, HELLO], "conversations": []}, "has 'messages' and 'conversations'"),
    ],
)
def test_a_wrong_row_is_named(tmp_path, row, problem):
    path = _write(tmp_path / "a.jsonl", {"messages": [HI, HELLO]}, row)
    with pytest.raises(InputError) as caught:
        _read(path)
    assert str(caught.value).startswith(f"{path}: line 2: ")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_messages_of_a_request_may_end_with_the_user():
    assert parse_messages([HI, HELLO, HI])[-1] == Message("user", "Hi!")


def test_messages_of_a_request_may_be_empty():
    for content in ("", " \n"):
        messages = [{"role": "system", "content": content}, HI, {"role": "assistant", "content": content}, HI]
        assert [message.content for message in parse_messages(messages)] == [content, "Hi!", content, "Hi!"]


@pytest.mark.parametrize(
    ("line", "are"),
    [
        (json.dumps({"messages": [HI, HELLO]}), True),
        (json.dumps({"messages": [HI, HELLO], "text": None, "conversations": None, "prompt": None}), True),
        ('{"text": "messages"}', False),
        ('{"messages": "3 messages"}', False),
        ('{"messages": null, "text": "a"}', False),
        ("messages", False),
    ],
)
def test_conversations_are_told_from_other_rows(line, are, tmp_path):
    (tmp_path / "chat.jsonl").write_text(line)
    (tmp_path / "chat.json").write_text(f"[{line}]")
    for file in find_text_files([str(tmp_path / "chat.jsonl"), str(tmp_path / "chat.json")]):
        assert file.holds_conversations == are
        if are:
            assert [conversation.texts for conversation in file.conversations()] == [("Hi!\nHello.",)]
