"""Add the flags of settings to library messages: what to type is at the end of the line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from cli.flags.usage import parameter_name
from lm.config.data import DataConfig, FilesConfig, ParallelConfig
from lm.config.decoding import BeamConfig, SamplingConfig, TranslationConfig
from lm.config.evaluation import PerplexityConfig
from lm.config.hardware import DistributionConfig, HardwareConfig, WorkersConfig
from lm.config.lora import LoraConfig
from lm.config.model import ModelConfig
from lm.config.options import list_options
from lm.config.tokenizer import TokenizerConfig
from lm.config.training import TrainingConfig
from lm.errors import Advice, LMError

_CONFIGS = (
    ModelConfig, TrainingConfig, FilesConfig, DataConfig, ParallelConfig, TokenizerConfig, LoraConfig,
    DistributionConfig,
    SamplingConfig, BeamConfig, TranslationConfig, PerplexityConfig, HardwareConfig, WorkersConfig,
)  # fmt: skip
_PREFERRED_COMMANDS = ("lm train", "lm tokenizer train")
"""Commands to name if several have a flag."""


def with_flags(
    message: LMError | Advice | str,
    command: Any = None,  # noqa: ANN401 (click's types, which typer keeps to itself)
    every: Callable[[], Any] | None = None,
) -> str:
    """Return a library message with the flags of its settings; plain text is unchanged.

    Args:
        message: an error or advice. A setting may have a value, as in `part=1/2`.
        command: the running click command.
        every: returns the group of all commands; a flag that `command` lacks is named with a command that has it.
    """
    flags = [_format_setting(setting, command, every) for setting in getattr(message, "settings", ())]
    return f"{message} ({', '.join(flags)})" if flags else str(message)


def _format_setting(setting: str, command: Any, every: Callable[[], Any] | None) -> str:  # noqa: ANN401
    """Return what to type to change a setting."""
    name, equals, value = setting.partition("=")
    own = (parameter_name(one) for one in getattr(command, "params", ()) if one.name == name)
    flag = next(own, None) or _declared_flags().get(name, "--" + name.replace("_", "-"))
    text = f"{flag} {value}" if equals else flag
    if every is None or flag in _command_flags(command):
        return text
    others = [path for path, other in _list_commands(every(), "lm") if flag in _command_flags(other)]
    first = min(others, key=lambda path: path not in _PREFERRED_COMMANDS, default="")
    return f"{first} {text}".strip()


@cache
def _declared_flags() -> dict[str, str]:
    """Return the flag of each config field, and of renamed Python keywords."""
    declared = {option.name: option.flag for config in reversed(_CONFIGS) for option in list_options(config)}
    return {**declared, "from_run": "--from"}


def _command_flags(command: Any) -> set[str]:  # noqa: ANN401
    return {parameter_name(one) for one in command.params if one.param_type_name == "option"}


def _list_commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    """Yield all commands of a group, in order, each with its command line."""
    for name, command in getattr(group, "commands", {}).items():
        if hasattr(command, "commands"):
            yield from _list_commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command
