"""How a corpus becomes tokens, and what contradicts itself there."""

from __future__ import annotations

import pytest

from lm.config.data import DataConfig, ParallelConfig
from lm.errors import UsageError


def test_a_held_out_file_may_have_any_name():
    assert DataConfig(validation="caf\udce9.txt").validation == "caf\udce9.txt"


@pytest.mark.parametrize(
    ("config", "values", "message"),
    [
        (DataConfig, {"label_field": "body", "field": "body"}, "text and label are two fields"),
        (ParallelConfig, {"bidirectional": True, "separate_vocabularies": True}, "share one vocabulary"),
        (ParallelConfig, {"source_language": "English!"}, r"a code such as de or pt-BR, "),
    ],
)
def test_what_contradicts_itself_is_refused(config, values, message):
    with pytest.raises(UsageError, match=message):
        config(**values)
