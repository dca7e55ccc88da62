"""The working tree's command lines, made from those of the base commit by one table."""

import re
import shlex
from collections.abc import Mapping, Sequence

FLAGS: Mapping[str, str | None] = {}
"""A flag of the base commit -> the words that replace it; its values stay behind them.

    "--typical": "--typical-p"              another name
    "--experts": "model.experts"            a setting: --set model.experts=VALUE; without a value true, as --no-X false
    "--greedy": "--temperature 0"           other words
    "--draft prompt": "--prompt-lookup"     of this value only
    "translate --sample": "--draw"          of this command only
    "--supervised": None                    nothing, and its values neither
"""
FORMS: Sequence[tuple[str, str]] = ()
r"""What flags can't say: patterns of whole lines, as written in the cases, and what replaces them, before FLAGS.

    (r"^copy (\S+) branch$", "")            an empty line is skipped
    (r"^train --resume branch/(\S+)", r"train --resume run/\1 -o branch")
"""
FIELDS: Mapping[str, str] = {}
"""A field of the working tree's JSON output -> its name at the base commit."""
ENVIRONMENT: Mapping[str, Mapping[str, str]] = {"base": {"LM_TOKEN_HEALING": "no"}, "tree": {"LM_TOKEN_HEALING": "no"}}
"""Variables of each tree's commands."""

_FLAG = re.compile(r"--?[a-z]")


def translate(
    line: str, flags: Mapping[str, str | None] = FLAGS, forms: Sequence[tuple[str, str]] = FORMS
) -> list[str]:
    """Return the words of a line of a case, with the names of the working tree."""
    for pattern, replacement in forms:
        line = re.sub(pattern, replacement, line)
    words = shlex.split(line)
    starts = [place for place, word in enumerate(words) if place == 0 or _FLAG.match(word)]
    parts = [words[start:end] for start, end in zip(starts, [*starts[1:], len(words)], strict=True)]
    return [word for part in parts for word in _replace(words[0], part, flags)]


def _replace(command: str, part: list[str], flags: Mapping[str, str | None]) -> list[str]:
    """Return what replaces a flag and its values."""
    flag, values = part[0], part[1:]
    for known, rest in ((" ".join(part[:2]), part[2:]), (flag, values)):
        for name in (f"{command} {known}", known):
            if name in flags:
                new = flags[name]
                return (
                    [] if new is None else _as_setting(new, rest, "true") if _is_setting(new) else [*new.split(), *rest]
                )
    positive = f"--{flag.removeprefix('--no-')}"
    new = flags.get(f"{command} {positive}", flags.get(positive))
    if flag.startswith("--no-") and new is not None and _is_setting(new):
        return _as_setting(new, values, "false")
    return part


def _is_setting(new: str) -> bool:
    return not new.startswith("-")


def _as_setting(name: str, values: list[str], switched: str) -> list[str]:
    value, rest = (values[0], values[1:]) if values else (switched, [])
    return ["--set", f"{name}={value}", *rest]
