"""Flags come from config fields, and a command learns which were given and by what."""

from __future__ import annotations

import pytest
import typer

from cli.flags.options import ParsedOptions, set_help, with_options
from cli.main import run
from lm.config.data import DataConfig
from lm.config.decoding import SamplingConfig


@pytest.fixture
def call():
    """Calls a command that takes some configs; returns what it was given."""
    received: list[ParsedOptions] = []
    app = typer.Typer()

    @app.command()
    @with_options({"data": DataConfig, "sampling": SamplingConfig}, leave_out=("validation",))
    def command(text: str = "", *, given: ParsedOptions) -> None:
        """Take configs."""
        received.append(given)

    set_help(app)

    def run(*arguments: str) -> ParsedOptions:
        app(list(arguments), standalone_mode=False)
        return received[-1]

    return run


def test_only_what_is_given_is_there(call):
    assert call() == {"data": {}, "sampling": {}}
    assert call("--temperature", "0.5", "--supervised") == {
        "data": {"supervised": True},
        "sampling": {"temperature": 0.5},
    }


def test_flags_and_the_environment_are_told_apart(call, monkeypatch):
    monkeypatch.setenv("LM_TOP_K", "7")
    given = call("--temperature", "0.5")
    assert given["sampling"] == {"temperature": 0.5, "top_k": 7}
    assert given.typed["sampling"] == {"temperature": 0.5}
    assert given.environment_values["sampling"] == {"top_k": 7}


def test_a_value_that_a_field_refuses_is_refused_with_its_flag_or_its_variable(capsys, monkeypatch):
    assert run(["generate", "nowhere", "--top-p", "2"]) == 2
    assert capsys.readouterr().err == "lm: top_p must be at most 1, not 2.0 (--top-p)\n"
    monkeypatch.setenv("LM_TOP_P", "2")
    assert run(["generate", "nowhere"]) == 2
    assert capsys.readouterr().err == "lm: top_p must be at most 1, not 2.0 (LM_TOP_P)\n"


def test_fields_that_are_left_out_have_no_flag(call):
    with pytest.raises(Exception, match="No such option"):
        call("--validation", "0.1")
