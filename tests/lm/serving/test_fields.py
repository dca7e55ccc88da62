"""The tables of request fields."""

import typing

import pytest
from lm.config.options import list_options

from lm.config.decoding import SamplingConfig
from lm.serving.fields import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    MESSAGE_FIELDS,
    SAMPLING_FIELDS,
    STREAM_OPTIONS,
    TEXT_PART_FIELDS,
)

openai_types = pytest.importorskip("openai.types")


def names(*kinds) -> set[str]:
    return {name for kind in kinds for name in typing.get_type_hints(kind)}


def test_the_tables_have_every_field_of_the_client():
    from openai.types import completion_create_params as completions
    from openai.types.chat import completion_create_params as chat

    assert {field.name for field in COMPLETION_FIELDS} == names(
        completions.CompletionCreateParamsNonStreaming, completions.CompletionCreateParamsStreaming
    )
    assert {field.name for field in CHAT_FIELDS} == names(
        chat.CompletionCreateParamsNonStreaming, chat.CompletionCreateParamsStreaming
    )


def test_the_tables_have_every_field_of_objects_in_a_request():
    from openai.types import chat

    assert {field.name for field in MESSAGE_FIELDS} == names(*typing.get_args(chat.ChatCompletionMessageParam))
    assert {field.name for field in TEXT_PART_FIELDS} == names(chat.ChatCompletionContentPartTextParam)
    assert {field.name for field in STREAM_OPTIONS} == names(chat.ChatCompletionStreamOptionsParam)


def test_every_sampling_setting_is_a_field():
    known = {field.name for field in (*COMPLETION_FIELDS, *SAMPLING_FIELDS)}
    assert {each.name for each in list_options(SamplingConfig)} <= known


def test_each_field_is_described_once():
    tables = COMPLETION_FIELDS, CHAT_FIELDS, SAMPLING_FIELDS, MESSAGE_FIELDS, TEXT_PART_FIELDS, STREAM_OPTIONS
    for fields in tables:
        assert len({field.name for field in fields}) == len(fields)
        assert all(field.note for field in fields)
