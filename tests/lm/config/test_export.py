"""Which dtypes go with which system."""

from __future__ import annotations

import pytest

from lm.config.export import ExportConfig
from lm.errors import UsageError


@pytest.mark.parametrize(
    ("to", "number_type"), [("gguf", "q8_0"), ("gguf", "float16"), ("ctranslate2", "int8"), ("ctranslate2", "bfloat16")]
)
def test_types_that_a_system_has(to, number_type):
    assert ExportConfig(to=to, type=number_type).type == number_type


@pytest.mark.parametrize(
    ("to", "number_type", "message"),
    [("gguf", "int8", "gguf cannot have the type 'int8'; choose from float32, float16, q8_0"),
     ("ctranslate2", "q8_0", "ctranslate2 cannot have the type 'q8_0'; choose from float32, float16, bfloat16"),
     ("huggingface", "float16", "its numbers stay in the type that the run has them in"),
     ("ollama", None, "to cannot be 'ollama'; choose from huggingface, peft, gguf, ctranslate2"),
     ("gguf", "q8", r"type cannot be 'q8'")],
)  # fmt: skip
def test_others_are_refused(to, number_type, message):
    with pytest.raises(UsageError, match=message):
        ExportConfig(to=to, type=number_type)


def test_matrices_are_float32_unless_another_type_is_asked_for():
    assert ExportConfig(to="gguf").type == "float32"
    assert ExportConfig(to="peft").type is None
