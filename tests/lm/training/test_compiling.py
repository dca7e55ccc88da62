"""What is said when torch's compiler fails."""

import re

import pytest
import torch

from lm.config.model import ModelConfig
from lm.errors import TrainingError, UsageError
from lm.model.transformer import build_model
from lm.training import compiling
from lm.training.compiling import check_compiler, converting_compile_errors


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


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine that has Python's headers and the compilers that a test names, and no others."""
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(compiling.sysconfig, "get_path", lambda _: str(tmp_path))
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)

    def has(*compilers: str, platform: str = "linux") -> None:
        monkeypatch.setattr(compiling.shutil, "which", lambda name: name if name in compilers else None)
        monkeypatch.setattr(compiling.sys, "platform", platform)

    return has


@pytest.mark.parametrize(
    ("device", "platform", "compilers", "environment"),
    [
        ("cpu", "linux", ["g++"], {}),
        ("cpu", "darwin", ["clang++"], {}),
        ("cpu", "linux", ["icpx"], {"CXX": "icpx"}),
        ("cuda", "linux", ["gcc"], {}),
        ("cuda", "linux", ["clang"], {}),
        ("cuda", "linux", ["icx"], {"CC": "icx"}),
    ],
)
def test_a_compiler_and_headers_are_enough(machine, monkeypatch, tmp_path, device, platform, compilers, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    machine(*compilers, platform=platform)
    check_compiler(device)
    machine(platform=platform)
    with pytest.raises(UsageError, match=f"there is no (gcc or )?{re.escape(compilers[0])}"):
        check_compiler(device)
    machine(*compilers, platform=platform)
    (tmp_path / "Python.h").unlink()
    with pytest.raises(UsageError, match="has no Python.h"):
        check_compiler(device)


@pytest.mark.parametrize("positions", ["rotary", "sinusoidal", "learned"])
def test_tables_of_positions_are_there_before_a_model_is_compiled(monkeypatch, positions):
    monkeypatch.setattr(torch, "compile", lambda states: states)
    model = build_model(ModelConfig(vocab_size=9, context_length=8, d_model=16, n_heads=2, positions=positions))
    compiling.compile_hidden_states(model, torch.device("cpu"))
    tables = [module.table for module in model.modules() if hasattr(module, "table")]
    assert bool(tables) is (positions != "learned")
    assert all(table._values is not None for table in tables)
