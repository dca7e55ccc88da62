"""Flags come from config fields; what is wrong is one line that ends with what to type."""

import pickle

import pytest
import typer

from cli.flags.message_flags import with_flags
from cli.flags.options import ParsedOptions, set_help, with_options
from cli.flags.usage import format_wrong_value
from cli.main import _build_parser, run
from lm.config.data import DataConfig
from lm.config.decoding import SamplingConfig
from lm.config.options import list_options
from lm.config.run_config import SECTIONS
from lm.errors import Advice, InputError, UsageError


@pytest.fixture
def call():
    """Calls a command that takes some configs; returns what it was given."""
    received: list[ParsedOptions] = []
    app = typer.Typer()

    @app.command()
    @with_options({"data": DataConfig, "sampling": SamplingConfig}, leave_out=("validation",))
    def command(text: str = "", *, options: ParsedOptions) -> None:
        """Take configs."""
        received.append(options)

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
    assert given.from_flags["sampling"] == {"temperature": 0.5}
    assert given.from_environment["sampling"] == {"top_k": 7}


def test_a_value_that_a_field_refuses_is_refused_with_its_flag_or_its_variable(capsys, monkeypatch):
    assert run(["generate", "nowhere", "--top-p", "2"]) == 2
    assert capsys.readouterr().err == "lm: top_p must be at most 1, not 2.0 (--top-p)\n"
    monkeypatch.setenv("LM_TOP_P", "2")
    assert run(["generate", "nowhere"]) == 2
    assert capsys.readouterr().err == "lm: top_p must be at most 1, not 2.0 (LM_TOP_P)\n"


def test_fields_that_are_left_out_have_no_flag(call):
    with pytest.raises(Exception, match="No such option"):
        call("--validation", "0.1")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("'x' is not a valid int.", "--n: 'x' is not a valid int"),
        ("'x' is not a valid boolean. Recognized values: yes, no", "--n: 'x' is not a valid boolean"),
    ],
)
def test_messages_about_values(message, expected):
    assert format_wrong_value("--n", message) == expected


@pytest.mark.parametrize(
    ("settings", "command", "flags"),
    [
        ([], "train", ""),
        (["batch_size"], "train", " (--batch-size)"),
        (["context_length", "max_length"], "train", " (--context, --max-length)"),
        (["lora", "part=1/2"], "train", " (--lora, lm prepare --part 1/2)"),
        (["portable"], "export", " (lm train --portable)"),
        (["special=<a>"], "perplexity", " (lm tokenizer train --special '<a>')"),
        (["resume=runs/my run"], "train", " (--resume 'runs/my run')"),
        (["to=gguf"], "export", " (--to gguf)"),
        (["no_such_thing"], "export", " (--no-such-thing)"),
        (["experts"], "train", " (--set model.experts)"),
        (["experts=8", "d_model"], "train", " (--set model.experts=8, --d-model)"),
        (["lora_on"], "export", " (lm train --set lora.on)"),
    ],
)
def test_flags_are_those_of_the_command_or_of_one_that_has_them(settings, command, flags):
    error = InputError("something is wrong", settings=settings)
    assert with_flags(error, _build_parser().commands[command], _build_parser) == "something is wrong" + flags


@pytest.mark.parametrize("section", SECTIONS)
def test_a_wrong_value_is_reported_with_what_to_type_for_its_option(section):
    for described in list_options(SECTIONS[section]):
        with pytest.raises(UsageError) as caught:
            described.check(object())
        assert described.flag not in str(caught.value)
        typed = f"--set {section}.{described.name}" if described.is_advanced else described.flag
        assert with_flags(caught.value, _build_parser().commands["train"], _build_parser).endswith(f" ({typed})")


def test_advice_is_text_with_settings():
    assert with_flags(Advice("take less", settings=["d_model"])) == "take less (--d-model)"
    assert with_flags("take less") == "take less"


def test_an_error_keeps_its_settings_on_its_way():
    error = UsageError("too long", settings=["steps"]).at("a.txt: line 3")
    arrived = pickle.loads(pickle.dumps(error))
    assert (type(arrived), str(arrived), arrived.settings) == (UsageError, "a.txt: line 3: too long", ("steps",))


def test_a_variable_is_named_in_place_of_its_flag(tmp_path, monkeypatch, capsys):
    (tmp_path / "a.txt").write_text("some text")
    command = ["prepare", str(tmp_path / "a.txt"), "-o", str(tmp_path / "out")]
    assert run([*command, "--validation", "3"]) == 2
    assert capsys.readouterr().err.endswith("or files, not 3 (--validation)\n")
    monkeypatch.setenv("LM_VALIDATION", "4")
    assert run(command) == 2
    assert capsys.readouterr().err.endswith("or files, not 4 (LM_VALIDATION)\n")
