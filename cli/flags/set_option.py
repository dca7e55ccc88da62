"""`--set TABLE.KEY=VALUE`: every setting by its key, parsed as the flag of that setting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typer.core import TyperOption
from typer.main import get_param_completion

from cli.flags.usage import SET, Context, Parameter, Parser
from lm.config.options import find_nearest
from lm.errors import UsageError


class SetOption(TyperOption):
    """The option `--set`; each value takes the place of a flag, in the order of the command line."""

    def __init__(self, parameters: Mapping[str, Parameter], autocompletion: Any) -> None:  # noqa: ANN401
        super().__init__(
            param_decls=[SET, "set_"],
            multiple=True,
            expose_value=False,
            metavar="KEY=VALUE",
            help="Any setting, by key (see --help-settings). Repeatable.",
            autocompletion=get_param_completion(autocompletion),
        )
        self._parameters = parameters

    def add_to_parser(self, parser: Parser, ctx: Context) -> None:
        """Register the option with a parser, which then parses each value as that of a flag."""
        super().add_to_parser(parser, ctx)

        def process(text: str, state: Any) -> None:  # noqa: ANN401
            key, equals, value = text.partition("=")
            parameter = self._parameters.get(key.strip())
            if parameter is None or not equals:
                if ctx.resilient_parsing:
                    return
                raise UsageError(
                    f"{_describe_problem(text, self._parameters, ctx)} (see {ctx.command_path} --help-settings)"
                )
            flags = parameter.opts
            if parameter.is_flag and not parameter.type.convert(value, parameter, ctx):
                flags = parameter.secondary_opts
            parser._long_opt[flags[0]].process(value, state)

        parser._long_opt[SET].process = process


def _describe_problem(text: str, parameters: Mapping[str, Parameter], context: Context) -> str:
    """Return what is wrong with a value of `--set`, and what is meant."""
    key, equals, _ = text.partition("=")
    key = key.strip()
    if key in parameters:
        return f"{SET} {key} needs a value, as in {SET} {key}=VALUE"
    if not equals:
        return f"{SET} takes KEY=VALUE, not {text!r}"
    near = nearest_key(key, parameters)
    if near is None:
        flag = "--" + key.rpartition(".")[2].replace("_", "-")
        near = flag if any(flag in parameter.opts for parameter in context.command.params) else None
    return f"no setting {key!r}" + (f" (did you mean {near!r}?)" if near else "")


def nearest_key(key: str, parameters: Mapping[str, Parameter]) -> str | None:
    """Return the key that is meant: of the same field or flag in any table, or the nearest."""
    name = key.rpartition(".")[2].lstrip("-")
    for known, parameter in parameters.items():
        if name == known.rpartition(".")[2] or f"--{name.replace('_', '-')}" in parameter.opts:
            return known
    names = {known.rpartition(".")[2]: known for known in reversed([*parameters])}
    return find_nearest(key, parameters) or names.get(find_nearest(name, names) or "")
