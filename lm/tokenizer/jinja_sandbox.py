"""Render Jinja templates of others in a sandbox, with the options and functions that transformers gives them."""

from __future__ import annotations

import datetime
import json
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils

from lm.errors import InputError


def render(source: str, *, block_end: str, **values: Any) -> str:
    """Render a template with these values.

    Args:
        block_end: written after the text of `{% generation %}` blocks.

    Raises:
        InputError: it is invalid, refuses the values, or does what the sandbox forbids.
    """
    try:
        return _compile(source, block_end).render(**values)
    except jinja2.exceptions.SecurityError as error:
        problem = "does what no template may do, and is refused"
        raise InputError(f"chat template: {problem} ({_one_line(error)})") from None
    except jinja2.TemplateSyntaxError as error:
        raise InputError(f"chat template: line {error.lineno}: not valid Jinja ({_one_line(error)})") from None
    except jinja2.TemplateError as error:
        raise InputError(f"chat template: {_one_line(error)}") from None
    except Exception as error:  # a template can raise whatever Python can
        raise InputError(f"chat template: fails on these messages ({_one_line(error)})") from None


@lru_cache(maxsize=32)
def _compile(source: str, block_end: str) -> jinja2.Template:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols])
    environment.extend(block_end=block_end)
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _format_now
    environment.globals["namespace"] = _Namespace
    return environment.from_string(source)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON; Jinja's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _format_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """A sandbox that refuses unsafe attributes at once; Jinja's own lets a template print them, as nothing."""

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        raise jinja2.exceptions.SecurityError(f"attribute {attribute!r} of {type(obj).__name__}")


class _GenerationBlock(jinja2.ext.Extension):
    """Marks the end of `{% generation %}` blocks."""

    tags = {"generation"}  # noqa: RUF012 (as Jinja declares it)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_mark_block"), [], [], body).set_lineno(line)

    def _mark_block(self, caller: jinja2.runtime.Macro) -> str:
        return f"{caller()}{self.environment.block_end}"  # type: ignore[attr-defined]


class _Namespace(jinja2.utils.Namespace):
    """A namespace without attributes that begin with an underscore."""

    def __init__(*args: Any, **values: Any) -> None:
        self = args[0]
        initial = dict(*args[1:], **values)
        for name in initial:
            _refuse_private(name)
        jinja2.utils.Namespace.__init__(self, initial)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"attribute {name!r} of a namespace")
