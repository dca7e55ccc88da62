"""What is cut of a long example is the beginning of its prompt, and a completion that cannot fit is named."""

from __future__ import annotations

import numpy as np
import pytest

from lm.data.examples import completion_length_error, truncate_prompt


@pytest.mark.parametrize("length", [2, 5, 6, 7, 30])
def test_start_and_end_stay_and_the_prompt_gives_way(length):
    ids = np.arange(100, 100 + length)
    kept = truncate_prompt(ids, context=5)
    assert len(kept) == min(length, 6)
    assert (kept[0], kept[-1]) == (ids[0], ids[-1])
    assert kept[1:].tolist() == ids.tolist()[-(len(kept) - 1) :]


def test_a_completion_fits_as_long_as_the_model_can_read_what_comes_before_each_of_its_tokens():
    assert completion_length_error(5, context=5) is None
    assert (
        completion_length_error(6, context=5)
        == "the completion is 5 tokens, and with its end does not fit into the context of 5"
    )
