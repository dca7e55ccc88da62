"""A wrong command line is one line that says what is wrong and what may be meant."""

from __future__ import annotations

import pytest

from cli.flags.usage import format_wrong_value
from cli.main import run


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("'x' is not a valid int.", "--n must be an integer, not 'x'"),
        ("'x' is not a valid float.", "--n must be a number, not 'x'"),
        ("0 is not in the range x>=1.", "--n must be at least 1, not 0"),
        ("9 is not in the range 1<=x<=5.", "--n must be from 1 to 5, not 9"),
        ("something new", "--n: something new"),
    ],
)
def test_messages_about_values(message, expected):
    assert format_wrong_value("--n", message) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["trian"], "no command 'trian' (did you mean 'train'?) (see lm --help)"),
        (["generate", "run", "--temprature", "1"], "no option --temprature (did you mean '--temperature'?)"),
        (["generate", "run", "--temp", "1"], "no option --temp (did you mean '--temperature'?)"),
        (["generate", "run", "Once", "upon"], "unexpected 'upon'; put a text of several words in quotes"),
        (["generate"], "RUN is missing (see lm generate --help)"),
        (["train", "text", "--steps"], "--steps needs a value"),
        (["plot", "run", "--width", "5"], "--width must be from 20 to 1000, not 5"),
    ],
)
def test_a_wrong_command_line_is_one_line(capsys, arguments, expected):
    assert run(arguments) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"lm: {expected}")
    assert message.count("\n") == 1
