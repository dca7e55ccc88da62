"""Messages about wrong command lines: Typer's, in one line."""

from __future__ import annotations

from typing import Any


def format_usage_error(error: Any) -> str:
    """Return a usage error in one line: what is wrong, an option or setting of a similar name, where to read more."""
    context = getattr(error, "ctx", None)
    message = error.format_message().partition("\n")[0].rstrip(".")
    if context and hasattr(error, "possibilities"):
        settings = getattr(context.command.callback, "settings", ())
        similar = [f"--set {each.key}" for each in settings if each.flag == error.option_name]
        hint = next(iter([*similar, *(error.possibilities or ())]), None)
        message = f"no option {error.option_name}" + (f" (did you mean {hint!r}?)" if hint else "")
    return f"{message} (see {context.command_path if context else 'lm'} --help)"
