"""The tables of request fields."""

import typing

import pytest

from lm.config.decoding import SamplingConfig
from lm.config.options import list_options
from lm.serving.fields import CHAT_FIELDS, COMPLETION_FIELDS, SAMPLING_FIELDS

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


def test_every_sampling_setting_is_a_field():
    known = {field.name for field in (*COMPLETION_FIELDS, *SAMPLING_FIELDS)}
    assert {each.name for each in list_options(SamplingConfig)} <= known


def test_each_field_is_described_once():
    for fields in (COMPLETION_FIELDS, CHAT_FIELDS, SAMPLING_FIELDS):
        assert len({field.name for field in fields}) == len(fields)
        assert all(field.note for field in fields)
