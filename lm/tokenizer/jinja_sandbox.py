"""Render Jinja templates of others in a sandbox, with the options and functions that transformers gives them."""

from __future__ import annotations

import datetime
import json
from functools import lru_cache, partial
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from lm.errors import InputError


def render(source: str, *, block_end: str, **values: Any) -> str:
    """Render a template.

    Args:
        block_end: written after the text of `{% generation %}` blocks.

    Raises:
        InputError: it is invalid, refuses the values, or does what the sandbox forbids.
    """
    try:
        return _compile(source, block_end).render(**values)
    except Exception as error:  # a template can raise whatever Python can
        raise InputError(f"chat template: {' '.join(str(error).split())}") from None


@lru_cache(maxsize=32)
def _compile(source: str, block_end: str) -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.extend(block_end=block_end)
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)  # Jinja's own escapes HTML
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.datetime.now().strftime(pattern)
    return environment.from_string(source)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


class _GenerationBlock(jinja2.ext.Extension):
    """Marks the end of `{% generation %}` blocks."""

    tags = {"generation"}  # noqa: RUF012 (as Jinja declares it)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        mark = jinja2.nodes.TemplateData(self.environment.block_end)  # type: ignore[attr-defined]
        return [jinja2.nodes.Scope(body), jinja2.nodes.Output([mark])]
