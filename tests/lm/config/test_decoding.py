"""How texts are drawn and translated, and what leaves nothing to draw."""

from __future__ import annotations

import pytest

from lm.config.decoding import SamplingConfig, TranslationConfig
from lm.errors import UsageError


@pytest.mark.parametrize(
    ("config", "values", "message"),
    [
        (SamplingConfig, {"stop": ("",)}, "stop cannot be empty"),
        (TranslationConfig, {"max_length_ratio": 0, "max_length_extra": 0}, "no room for a translation"),
    ],
)
def test_what_leaves_nothing_to_draw_is_refused(config, values, message):
    with pytest.raises(UsageError, match=message):
        config(**values)
