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


def test_a_package_above_its_budget_fails(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(size, "ROOT", tmp_path)
    for name in ("lm/model/block.py", "lm/api.py", "cli/main.py", "tests/deep/test_it.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    budgets = {"cli (root)": 3, "lm (root)": 3, "lm/model": 3, "tests": 3, "lm + cli": 9}

    def write(**changed: int) -> None:
        lines = (f'"{row}" = {budget}\n' for row, budget in {**budgets, **changed}.items())
        (tmp_path / "pyproject.toml").write_text("[tool.size]\n" + "".join(lines))

    write()
    assert size.main() == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()][1:] == [
        ["cli", "(root)", "3", "3"], ["lm", "(root)", "3", "3"], ["lm/model", "3", "3"], ["tests", "3", "3"],
        ["lm", "+", "cli", "9", "9"],
    ]  # fmt: skip
    for row, tokens in budgets.items():
        write(**{row: tokens - 1})
        assert size.main() == 1
        error = f'pyproject.toml: [tool.size] "{row}": {tokens} code tokens, budget {tokens - 1}\n'
        assert capsys.readouterr().err == error
