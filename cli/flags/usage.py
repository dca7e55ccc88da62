"""Messages about wrong command lines, rewritten from Typer's."""

from __future__ import annotations

import re
from typing import Any

from lm.config.options import did_you_mean, find_nearest

SET = "--set"

# click's types, which typer keeps to itself
Command = Any
Context = Any
Formatter = Any
Parameter = Any
Parser = Any

_NOUNS = {
    "int": "an integer",
    "integer": "an integer",
    "float": "a number",
    "boolean": "yes or no, true or false, 1 or 0",
}
_TEXTS = ("PROMPT", "TEXT")
_OTHER_NAMES = {"--length": "--max-tokens", "--n-predict": "--max-tokens"}
"""Flags of other tools that are spelled differently from ours."""


def format_usage_error(error: Any) -> str:  # noqa: ANN401 (click's types, which typer keeps to itself)
    """Return a usage error in one line: what is wrong, a suggestion, and where to read more."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "lm"
    return f"{_describe_problem(error, context)} (see {command} --help)"


def format_wrong_value(name: str, message: str) -> str:
    """Return a message about a wrong value.

    Args:
        name: of the flag, argument or variable.
        message: Typer's, such as "'x' is not a valid int."; an unknown form is kept.
    """
    if match := re.match(r"('.*') is not a valid (\w+)", message, re.DOTALL):
        noun = _NOUNS.get(match[2], f"a {match[2]}")
        return f"{name} must be {noun}, not {match[1]}"
    if match := re.match(r"(\S+) is not in the range x>=(\S+?)\.?$", message):
        return f"{name} must be at least {match[2]}, not {match[1]}"
    if match := re.match(r"(\S+) is not in the range (\S+?)<=x<=(\S+?)\.?$", message):
        return f"{name} must be from {match[2]} to {match[3]}, not {match[1]}"
    return f"{name}: {message}"


def _describe_problem(error: Any, context: Context) -> str:  # noqa: ANN401
    """Return what is wrong, and a suggestion."""
    parameter, message = getattr(error, "param", None), error.message.rstrip(".")
    if hasattr(error, "possibilities"):
        return f"no option {error.option_name}{_suggest_flag(error.option_name, context)}"
    if hasattr(error, "param_type"):
        return f"{parameter_name(parameter)} is missing" if parameter else error.format_message()
    if parameter is not None:
        return format_wrong_value(parameter_name(parameter), message)
    return _translate_message(message, context) or str(error.format_message())


def _translate_message(message: str, context: Context) -> str | None:
    """Rewrite a Typer message without a parameter, if it is a known one."""
    if match := re.match(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", message, re.DOTALL):
        quote = any(parameter.metavar in _TEXTS for parameter in context.command.params)
        return f"unexpected {match[1]!r}" + ("; put a text of several words in quotes" if quote else "")
    if match := re.match(r"No such command '(.*?)'", message):
        return f"no command {match[1]!r}{did_you_mean(match[1], context.command.commands)}"
    if match := re.match(r"Option '(.*?)' requires an argument", message):
        return f"{match[1]} needs a value"
    return None


def _suggest_flag(typed: str, context: Context) -> str:
    """Return ` (did you mean …?)` with the flag that is nearest, or the key of a setting without a visible one."""
    spelled = {flag: spell(parameter, value=flag not in parameter.secondary_opts) if is_set_by_key(parameter) else flag
               for parameter in context.command.params
               for flag in (*parameter.opts, *parameter.secondary_opts) if flag[0] == "-"}  # fmt: skip
    other = _OTHER_NAMES.get(typed)
    near = other if other in spelled else find_nearest(typed, spelled)
    return f" (did you mean {spelled[near]!r}?)" if near else ""


def parameter_name(parameter: Parameter) -> str:
    """Return a flag as typed, the key of a setting without a visible flag, or the metavar of an argument."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    return f"{SET} {parameter.setting.key}" if is_set_by_key(parameter) else long_flag(parameter)


def is_set_by_key(parameter: Parameter) -> bool:
    """Return whether an option is a setting without a visible flag."""
    return parameter.hidden and hasattr(parameter, "setting")


def spell(parameter: Parameter, *, value: Any = True) -> str:  # noqa: ANN401
    """Return an option without its value, or a switch with it, as --no-compile or --set model.zero_init=false."""
    name = parameter_name(parameter)
    if is_set_by_key(parameter) and parameter.is_flag:
        return f"{name}={'true' if value else 'false'}"
    return str(parameter.secondary_opts[0]) if value is False and parameter.secondary_opts else name


def spell_no(flag: str) -> str:
    """Return the flag that switches another off."""
    return f"--no-{flag[2:]}"


def long_flag(parameter: Parameter) -> str:
    """Return the first long flag of an option; others are aliases."""
    return str(next((flag for flag in parameter.opts if flag.startswith("--")), parameter.opts[0]))
