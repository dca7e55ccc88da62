"""Flags from config fields: a command names the config classes it takes and receives what was given of each."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from cli.flags import completion
from cli.flags.command_line import CommandLine, in_message, invocation_of, set_variables
from cli.flags.without_effect import Invocation, Stage, refuse
from lm.config import options
from lm.config.options import Option
from lm.errors import UsageError


class Given(dict[str, dict[str, Any]]):
    """What was given to a command in flags or the environment: {section: {field: value}}.

    Attributes:
        environment: which of the command's parameters the environment set, each with its variable; those made from
            config fields are called `section__field`.
        arguments: the whole command line.
        invocation: the options and arguments as they were parsed.
        began: when the command began, on the clock of `time.monotonic`.
    """

    def __init__(
        self,
        values: Mapping[str, dict[str, Any]],
        variables: Mapping[str, str],
        arguments: Sequence[str] = (),
        invocation: Invocation | None = None,
        began: float = 0.0,
    ) -> None:
        super().__init__(values)
        self.environment, self.arguments, self.invocation = variables, arguments, invocation
        self.began = began

    def refuse_without_effect(self, stage: Stage, **known: Any) -> None:  # noqa: ANN401 (see `without_effect.Mode`)
        """Raise UsageError if an option was typed that has no effect, as far as is known by now."""
        if self.invocation is not None:
            refuse(self.invocation, stage, **known)

    @property
    def typed(self) -> dict[str, dict[str, Any]]:
        """What was given in flags alone: only these can contradict each other or a run that goes on."""
        return {section: self._of(section, from_environment=False) for section in self}

    @property
    def ambient(self) -> dict[str, dict[str, Any]]:
        """What the environment alone says."""
        return {section: self._of(section, from_environment=True) for section in self}

    def _of(self, section: str, *, from_environment: bool) -> dict[str, Any]:
        return {
            name: value
            for name, value in self[section].items()
            if (f"{section}__{name}" in self.environment) is from_environment
        }


def takes(
    panels: Mapping[str, type], *, leave_out: tuple[str, ...] = (), defaults: object = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one flag for each option of some config classes.

    The command's own signature has a keyword `given`; it receives {section: {field: value}} with the fields that
    were set on the command line or in the environment. Flags take their name, type, help and default from the field.

    Args:
        panels: section ("model", "training", …) to config class.
        leave_out: fields that get no flag.
        defaults: holds the values without flags, as `defaults.section.field`, where they are not the fields' own.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        flags = {
            f"{section}__{described.name}": (section, described)
            for section, config in panels.items()
            for described in options.options(config)
            if described.name not in leave_out
        }

        @functools.wraps(command)
        def wrapper(*, typer_context: typer.Context, **values: Any) -> None:  # noqa: ANN401
            variables = set_variables(typer_context)
            command_line = typer_context.obj or CommandLine((), lambda _: 0, time.monotonic())
            invocation = invocation_of(typer_context)
            sections: dict[str, dict[str, Any]] = {section: {} for section in panels}
            given = Given(sections, variables, command_line.arguments, invocation, command_line.began)
            for key, (section, described) in flags.items():
                value = values.pop(key)
                if value is not None:
                    dataclasses.replace(described, flag=variables.get(key, described.flag)).check(value)
                    given[section][described.name] = value
            try:
                command(**values, given=given)
            except UsageError as error:
                named = in_message(str(error), variables.values())
                raise UsageError(named, settings=error.settings) from error

        kept = [parameter for name, parameter in own.parameters.items() if name != "given"]
        added = [
            _parameter(key, section, described, _default(described, getattr(defaults, section, None)))
            for key, (section, described) in flags.items()
        ]
        context = inspect.Parameter("typer_context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        parameters = [*kept, *added, context]
        wrapper.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapper

    return decorate


_METAVARS = {int: "N", float: "X", str: "TEXT", bool: None, tuple: "TEXT"}


def _default(described: Option, config: object) -> Any:  # noqa: ANN401
    return described.default if config is None else getattr(config, described.name)


def _parameter(name: str, section: str, described: Option, default: Any) -> inspect.Parameter:  # noqa: ANN401
    """A choice is plain text here: the option's own check says more than Typer's when it is none of them."""
    text = described.help
    if described.choices:
        text += f" One of {', '.join(described.choices)}."
    if default not in (None, ()):
        text += f" [default: {_plain(default)}]"
    flag = f"{described.flag}/--no-{described.flag[2:]}" if described.kind is bool else described.flag
    kind: Any = list[str] if described.kind is tuple else described.kind
    annotation = Annotated[
        kind | None,
        typer.Option(
            flag,
            help=text,
            metavar="NAME" if described.choices else _METAVARS[described.kind],
            rich_help_panel=section.capitalize(),
            show_default=False,
            autocompletion=completion.among(described.choices) if described.choices else None,
        ),
    ]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _plain(value: Any) -> str:  # noqa: ANN401
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
