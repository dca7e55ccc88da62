"""`--set TABLE.KEY=VALUE`: every setting by its key, parsed as the flag of that setting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from typer.core import TyperOption
from typer.main import get_param_completion

from cli.flags.usage import SET, Context, Parameter
from lm.config.options import did_you_mean
from lm.errors import UsageError


def build_set_option(autocompletion: Any) -> TyperOption:  # noqa: ANN401
    """Return the option `--set`, for help and completion: `expand_settings` replaces it before options are parsed."""
    return TyperOption(
        param_decls=[SET, "set_"],
        multiple=True,
        expose_value=False,
        metavar="KEY=VALUE",
        help="Any setting, by key (see --help-settings). Repeatable.",
        autocompletion=get_param_completion(autocompletion),
    )


def expand_settings(words: Sequence[str], parameters: Mapping[str, Parameter], context: Context) -> Iterator[str]:
    """Yield a command line in which each `--set KEY=VALUE` is the flag of that setting.

    Args:
        parameters: by key.

    Raises:
        UsageError: there is no such key, or no value.
    """
    rest = iter(words)
    for word in rest:
        option, equals, text = word.partition("=")
        if word == "--":
            yield from (word, *rest)
        elif option == SET and (equals or (text := next(rest, ""))):
            yield _flag(text, parameters, context)
        else:
            yield word


def _flag(text: str, parameters: Mapping[str, Parameter], context: Context) -> str:
    """Return `KEY=VALUE` as the flag of a setting."""
    key, equals, value = text.partition("=")
    parameter = parameters.get(key.strip())
    see = f"(see {context.command_path} --help-settings)"
    if not equals:
        raise UsageError(f"{SET} takes KEY=VALUE, not {text!r} {see}")
    if parameter is None:
        raise UsageError(f"no setting {key!r}{did_you_mean(key, parameters)} {see}")
    if not parameter.is_flag:
        return f"{parameter.opts[0]}={value}"
    return str(parameter.opts[0] if parameter.type.convert(value, parameter, context) else parameter.secondary_opts[0])
