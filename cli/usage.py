"""Messages about wrong command lines: Typer's, in one line."""

from __future__ import annotations

from typing import Any

_OTHER_WORDS = {
    "--model": "--from", "--data": "CORPUS…", "--lr": "--learning-rate", "--n-embd": "--d-model",
    "--width": "--d-model", "--hidden-size": "--d-model", "--n-layer": "--n-layers", "--layers": "--n-layers",
    "--n-head": "--n-heads", "--heads": "--n-heads", "--block-size": "--context", "--max-iters": "--steps",
    "--max-steps": "--steps", "--num-epochs": "--epochs", "--output-dir": "--out", "--length": "--max-tokens",
    "--n-predict": "--max-tokens", "--max-new-tokens": "--max-tokens", "--num-samples": "--samples",
    "--num-beams": "--beam", "--temp": "--temperature", "--wd": "--weight-decay", "--checkpoint": "--resume",
    "--greedy": "--temperature 0", "--draft": "--draft-model", "--typical": "--typical-p",
    "--no-repeat-ngram": "--no-repeat-ngram-size", "--kind": "--tokenizer", "--prompt-file": "PROMPT",
    "finetune": "train --from RUN", "fine-tune": "train --from RUN", "sample": "generate", "eval": "evaluate",
    "ppl": "perplexity", "tokenize": "tokenizer encode",
}  # fmt: skip
"""Options and commands of other tools, with ours."""


def format_usage_error(error: Any) -> str:
    """Return a usage error in one line: what is wrong, a suggestion, and where to read more."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "lm"
    return f"{_describe_problem(error)} (see {path} --help)"


def _describe_problem(error: Any) -> str:
    if hasattr(error, "possibilities"):
        return f"no option {error.option_name}{_suggest(error)}"
    message = error.format_message().partition("\n")[0].rstrip(".")
    word = message.partition("'")[2].partition("'")[0]
    if message.startswith("No such command") and word in _OTHER_WORDS:
        return f"no command {word!r} (did you mean {_OTHER_WORDS[word]!r}?)"
    return message


def _suggest(error: Any) -> str:
    """Return what may be meant by an unknown option: an option or setting that its command has."""
    typed, command = error.option_name, error.ctx.command
    if not typed.lstrip("-")[:1].isalpha():
        return ": a text that begins with a hyphen goes after --"
    names = {name for parameter in command.params for name in (*parameter.opts, parameter.metavar)}
    keys = {setting.flag: f"--set {setting.key}" for setting in getattr(command.callback, "settings", ())}
    word = _OTHER_WORDS.get(typed, "")
    ours = keys.get(typed) or (word if word.split(" ")[0] in names else next(iter(error.possibilities or ()), ""))
    return f" (did you mean {ours!r}?)" if ours else ""
