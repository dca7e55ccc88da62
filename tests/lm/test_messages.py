"""Messages of the library name settings; the command line adds their flags."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from lm.config.options import option

import lm
from lm.config.model import ModelConfig

FOLDER = Path(lm.__file__).parent
MAY_NAME_FLAGS = {option.__name__}
"""Calls whose texts are for the command line: help. `startswith("--")` and the like hold no flag."""


def texts(tree: ast.AST) -> Iterator[ast.Constant]:
    """The texts of a module but for docstrings and help."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MAY_NAME_FLAGS:
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node
        yield from texts(node)


def test_no_text_of_the_library_names_a_flag():
    found = [
        f"{path.relative_to(FOLDER)}:{text.lineno}: {text.value}"
        for path in sorted(FOLDER.rglob("*.py"))
        if "--" in (source := path.read_text())
        for text in texts(ast.parse(source))
        if re.search(r"--[a-z]", text.value)
    ]
    assert not found


def test_a_setting_that_contradicts_another_is_named_without_its_flag():
    with pytest.raises(Exception, match="masked model") as caught:
        ModelConfig(objective="masked", decoder_only=True)
    assert caught.value.settings == ("decoder_only", "objective")
