"""Code tokens are counted alike in each version of Python, and a package above its budget fails."""

import pytest

from tests import size


@pytest.mark.parametrize(
    ("source", "tokens"),
    [
        ("x = 1  # one\n\n\ny = 2\n", 6),
        ('"""Docstring."""\n\n\ndef f(a):\n    """Docstring.\n\n    More.\n    """\n    return "b"\n', 8),
        ("class A:\n    b: int = 3\n    'Described.'\n", 8),
        ("f(f\"{a:{width}} {f'{b}'}\", 'c')\n", 6),  # f ( string , string )
        ("", 0),
    ],
)
def test_comments_docstrings_and_layout_do_not_count(source, tokens):
    assert size.count_tokens(source) == tokens
