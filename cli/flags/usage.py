"""Messages about wrong command lines: Typer's, with the names of options as they are typed."""

from __future__ import annotations

from typing import Any

SET = "--set"

# click's types, which typer keeps to itself
Command = Any
Context = Any
Formatter = Any
Parameter = Any

_OTHER_WORDS = {
    "--model": ("--from", "RUN"), "--data": ("CORPUS…",), "--lr": ("--learning-rate",), "--n-embd": ("--d-model",),
    "--width": ("--d-model",), "--hidden-size": ("--d-model",), "--n-layer": ("--n-layers",),
    "--layers": ("--n-layers",), "--n-head": ("--n-heads",), "--heads": ("--n-heads",), "--block-size": ("--context",),
    "--max-iters": ("--steps",), "--max-steps": ("--steps",), "--num-epochs": ("--epochs",),
    "--output-dir": ("--out",), "--length": ("--max-tokens",), "--n-predict": ("--max-tokens",),
    "--max-new-tokens": ("--max-tokens",), "--num-samples": ("--samples",), "--num-beams": ("--beam",),
    "--temp": ("--temperature",), "--wd": ("--weight-decay",), "--checkpoint": ("--resume", "RUN"),
    "finetune": ("train --from RUN",), "fine-tune": ("train --from RUN",), "sample": ("generate",),
    "eval": ("evaluate",), "ppl": ("perplexity",), "tokenize": ("tokenizer encode",),
}  # fmt: skip
"""Options and commands of other tools, with ours: the first that the command has."""


def format_usage_error(error: Any) -> str:  # noqa: ANN401 (click's types, which typer keeps to itself)
    """Return a usage error in one line: what is wrong, a suggestion, and where to read more."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "lm"
    return f"{_describe_problem(error, context)} (see {path} --help)"


def _describe_problem(error: Any, context: Context) -> str:  # noqa: ANN401
    if hasattr(error, "possibilities"):
        return f"no option {error.option_name}{_suggest(error, context)}"
    parameter, message = getattr(error, "param", None), error.format_message().rstrip(".")
    if parameter is None:
        word = message.partition("'")[2].partition("'")[0]
        ours = _OTHER_WORDS.get(word, ()) if message.startswith("No such command") else ()
        many = "; put a text of several words in quotes" if message.startswith("Got unexpected extra") else ""
        return f"No such command {word!r} (did you mean {ours[0]!r}?)" if ours else f"{message}{many}"
    name = parameter_name(parameter)
    return f"{name} is missing" if hasattr(error, "param_type") else format_wrong_value(name, error.message)


def format_wrong_value(name: str, message: str) -> str:
    """Return Typer's message about the value of a flag, argument or variable."""
    return f"{name}: {message.partition('. ')[0].rstrip('.')}"


def _suggest(error: Any, context: Context) -> str:  # noqa: ANN401
    """Return what may be meant by an unknown option: ours for the word of another tool, or the nearest."""
    typed = error.option_name
    if not typed.lstrip("-")[:1].isalpha():
        return ": a text that begins with a hyphen goes after --"
    names = {name: each for each in context.command.params for name in (*each.opts, each.metavar)}
    ours = [name for name in _OTHER_WORDS.get(typed, ()) if name in names] or error.possibilities
    if not ours:
        return ""
    parameter = names.get(ours[0])
    shown = parameter_name(parameter) if parameter is not None and is_set_by_key(parameter) else ours[0]
    return f" (did you mean {shown!r}?)"


def parameter_name(parameter: Parameter) -> str:
    """Return a flag as typed, the key of a setting without a visible flag, or the metavar of an argument."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    return f"{SET} {parameter.setting.key}" if is_set_by_key(parameter) else long_flag(parameter)


def is_set_by_key(parameter: Parameter) -> bool:
    """Return whether an option is a setting without a visible flag."""
    return parameter.hidden and hasattr(parameter, "setting")


def spell_no(flag: str) -> str:
    """Return the flag that switches another off."""
    return f"--no-{flag[2:]}"


def long_flag(parameter: Parameter) -> str:
    """Return the first long flag of an option; others are aliases."""
    return str(next((flag for flag in parameter.opts if flag.startswith("--")), parameter.opts[0]))
