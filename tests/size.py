"""Print code tokens per package and fail above the budgets of `[tool.size]` in pyproject.toml: `python -m tests.size`.

Code tokens are Python tokens without comments, docstrings and layout. Modules at the root of `lm` or `cli` are one row.
"""

import ast
import sys
import tokenize
import tomllib
from collections import Counter
from io import StringIO
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("cli", "lm")
COUNTED = {"NAME", "OP", "NUMBER", "STRING", "FSTRING_END"}


def main() -> int:
    """Print sizes and budgets; returns the exit code."""
    budgets = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["size"]
    sizes = measure()
    print(f"{'':20}{'tokens':>9}{'budget':>9}")
    for row in {**sizes, **budgets}:
        print(f"{row:20}{sizes[row]:9,}{budgets.get(row, 0):9,}")
    exceeded = [row for row, tokens in sizes.items() if tokens > budgets.get(row, 0)]
    for row in exceeded:
        message = f'pyproject.toml: [tool.size] "{row}": {sizes[row]:,} code tokens, budget {budgets.get(row, 0):,}'
        print(message, file=sys.stderr)
    return 1 if exceeded else 0


def measure() -> Counter[str]:
    """Return the code tokens of each row, and of `lm` and `cli` together."""
    sizes = Counter[str]()
    for package in (*PRODUCT, "corpora", "tests"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT / package).parts
            row = f"{package}/{parts[0]}" if len(parts) > 1 else f"{package} (root)"
            sizes[row if package in PRODUCT else package] += count_tokens(path.read_text(encoding="utf-8"))
    sizes["lm + cli"] = sum(tokens for row, tokens in sizes.items() if row.startswith(PRODUCT))
    return sizes


def count_tokens(source: str) -> int:
    """Count the code tokens of a module; an f-string is one, as before Python 3.12."""
    docstrings = {
        (node.lineno, node.col_offset)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    count = depth = 0
    for token in tokenize.generate_tokens(StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        depth += (kind == "FSTRING_START") - (kind == "FSTRING_END")
        count += depth == 0 and kind in COUNTED and token.start not in docstrings
    return count


if __name__ == "__main__":
    sys.exit(main())
