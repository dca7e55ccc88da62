"""What is said when torch's compiler fails."""

from __future__ import annotations

import pytest
import torch

from lm.errors import TrainingError
from lm.training.compiling import failures_in_a_line


def test_a_failure_of_the_compiler_is_one_line_that_says_how_to_go_on():
    def broken(_graph: object, _inputs: object) -> None:
        raise ValueError("this kernel\nis none")

    compiled = torch.compile(lambda x: x + 1, backend=broken)
    with pytest.raises(TrainingError, match="--no-compile") as caught, failures_in_a_line():
        compiled(torch.ones(2))
    assert "this kernel" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_errors_pass_through():
    with pytest.raises(ZeroDivisionError), failures_in_a_line():
        1 / 0  # noqa: B018
