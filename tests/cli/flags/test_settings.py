"""Errors of the library end with what to type: the flags of the command that runs, or of one that has them."""

from __future__ import annotations

import pickle

import pytest

from cli.flags.settings import with_flags
from cli.main import _build_parser, run
from lm.config.options import list_options
from lm.config.run import SECTIONS
from lm.errors import Advice, InputError, UsageError


@pytest.mark.parametrize(
    ("settings", "command", "flags"),
    [
        ([], "train", ""),
        (["batch_size"], "train", " (--batch-size)"),
        (["context_length", "max_length"], "train", " (--context, --max-length)"),
        (["lora", "part=1/2"], "train", " (--lora, lm prepare --part 1/2)"),
        (["portable"], "export", " (lm train --portable)"),
        (["special='<a>'"], "perplexity", " (lm tokenizer train --special '<a>')"),
        (["to=gguf"], "export", " (--to gguf)"),
        (["no_such_thing"], "export", " (--no-such-thing)"),
        (["experts"], "train", " (--set model.experts)"),
        (["experts=8", "d_model"], "train", " (--set model.experts=8, --d-model)"),
        (["lora_on"], "export", " (lm train --set lora.on)"),
    ],
)
def test_flags_are_those_of_the_command_or_of_one_that_has_them(settings: list[str], command: str, flags: str) -> None:
    error = InputError("something is wrong", settings=settings)
    assert with_flags(error, _build_parser().commands[command], _build_parser) == "something is wrong" + flags


@pytest.mark.parametrize(
    ("section", "described"),
    [pytest.param(name, each, id=each.flag) for name, kind in SECTIONS.items() for each in list_options(kind)],
)
def test_a_wrong_value_is_reported_with_what_to_type_for_its_option(section, described) -> None:
    with pytest.raises(UsageError) as caught:
        described.check(object())
    assert described.flag not in str(caught.value)
    typed = f"--set {section}.{described.name}" if described.is_advanced else described.flag
    assert with_flags(caught.value, _build_parser().commands["train"], _build_parser).endswith(f" ({typed})")


def test_advice_is_text_with_settings() -> None:
    assert with_flags(Advice("take less", settings=["d_model"])) == "take less (--d-model)"
    assert with_flags("take less") == "take less"


def test_an_error_keeps_its_settings_on_its_way() -> None:
    error = UsageError("too long", settings=["steps"]).at("a.txt: line 3")
    arrived = pickle.loads(pickle.dumps(error))
    assert (type(arrived), str(arrived), arrived.settings) == (UsageError, "a.txt: line 3: too long", ("steps",))


def test_a_variable_is_named_in_place_of_its_flag(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "a.txt").write_text("some text")
    command = ["prepare", str(tmp_path / "a.txt"), "-o", str(tmp_path / "out")]
    assert run([*command, "--validation", "3"]) == 2
    assert capsys.readouterr().err.endswith("or files, not 3 (--validation)\n")
    monkeypatch.setenv("LM_VALIDATION", "4")
    assert run(command) == 2
    assert capsys.readouterr().err.endswith("or files, not 4 (LM_VALIDATION)\n")
