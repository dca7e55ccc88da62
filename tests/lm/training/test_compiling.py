"""What is said when torch's compiler fails."""

import pytest
import torch

from lm.config.model import ModelConfig
from lm.errors import TrainingError
from lm.model.transformer import build_model
from lm.training import compiling
from lm.training.compiling import converting_compile_errors


def test_a_failure_of_the_compiler_is_one_line_that_says_how_to_continue():
    def broken(_graph: object, _inputs: object) -> None:
        raise ValueError("this kernel\nis none")

    compiled = torch.compile(lambda x: x + 1, backend=broken)
    with pytest.raises(TrainingError, match="resume without it") as caught, converting_compile_errors():
        compiled(torch.ones(2))
    assert "this kernel" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_errors_pass_through():
    with pytest.raises(ZeroDivisionError), converting_compile_errors():
        1 / 0  # noqa: B018


@pytest.mark.parametrize("positions", ["rotary", "sinusoidal", "learned"])
def test_tables_of_positions_are_there_before_a_model_is_compiled(monkeypatch, positions):
    monkeypatch.setattr(torch, "compile", lambda states: states)
    model = build_model(ModelConfig(vocab_size=9, context_length=8, d_model=16, n_heads=2, positions=positions))
    compiling.compile_hidden_states(model, torch.device("cpu"))
    tables = [module.table for module in model.modules() if hasattr(module, "table")]
    assert bool(tables) is (positions != "learned")
    assert all(table._values is not None for table in tables)
