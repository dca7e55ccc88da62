"""Small changes to a module, each of which a test should notice: what can be changed, and a sample of that."""

import ast
import itertools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

OPERATORS = {
    "<": ["<=", ">="], "<=": ["<", ">"], ">": [">=", "<="], ">=": [">", "<"], "==": ["!="], "!=": ["=="],
    "is not": ["is"], "is": ["is not"], "not in": ["in"], "in": ["not in"], "and": ["or"], "or": ["and"],
    "+": ["-"], "-": ["+"], "*": ["/"], "/": ["*"], "//": ["*"], "%": ["//"], "**": ["*"], "@": ["*"],
    "<<": [">>"], ">>": ["<<"], "&": ["|"], "|": ["&"], "^": ["&"],
}  # fmt: skip
OPERATOR = re.compile(r"\b(?:is not|not in|is|in|and|or)\b|[<>=!]=|\*\*|//|<<|>>|[-+*/%<>&|^@]")
SYMMETRIC = {"transpose", "swapaxes", "isclose", "allclose", "equal", "logaddexp"}
"""Methods and functions whose first two arguments may be swapped."""

OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any"}
SKIPPED_FIELDS = {"annotation", "returns", "decorator_list"}
Span = Callable[[ast.AST], tuple[int, int]]


@dataclass(frozen=True)
class Mutation:
    """Bytes `start` to `end` of a file in a tree become `after`."""

    tree: Path
    path: str
    line: int
    start: int
    end: int
    after: str

    def apply(self, source: bytes) -> bytes:
        """Return the mutated contents of the file."""
        return source[: self.start] + self.after.encode() + source[self.end :]

    def __str__(self) -> str:
        source = (self.tree / self.path).read_bytes()
        first = source.rfind(b"\n", 0, self.start) + 1
        last = first + len(source[first:].partition(b"\n")[0])
        before, after = source[first : self.start], source[self.end : max(last, self.end)]
        whole = f"{before.decode()}[[{source[self.start : self.end].decode()} -> {self.after}]]{after.decode()}"
        return f"{self.path}:{self.line}: {' '.join(whole.split())}"


def sample_mutations(tree: Path, modules: Sequence[str], count: int, seed: int) -> list[Mutation]:
    """Sample mutations of files in a tree, at most one per place, each of which changes the syntax tree."""
    roots = (tree / name for name in modules)
    files = {path for root in roots for path in ([root] if root.is_file() else root.rglob("*.py"))}
    found = [mutation for path in sorted(files) for mutation in mutations(tree, path)]
    random.Random(seed).shuffle(found)
    places = {(mutation.path, mutation.start): mutation for mutation in found}
    return list(itertools.islice(filter(_changes_tree, places.values()), count))


def mutations(tree: Path, path: Path) -> Iterator[Mutation]:
    """Yield all mutations of a file."""
    source = path.read_bytes()
    lines = [0, *itertools.accumulate(len(line) for line in source.splitlines(keepends=True))]

    def span(node: ast.AST) -> tuple[int, int]:
        return lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset

    for node in _nodes(ast.parse(source)):
        for start, end, afters in _places(node, span, source):
            line = source.count(b"\n", 0, start) + 1
            yield from (Mutation(tree, str(path.relative_to(tree)), line, start, end, after) for after in afters)


def _changes_tree(mutation: Mutation) -> bool:
    source = (mutation.tree / mutation.path).read_bytes()
    try:
        return ast.dump(ast.parse(mutation.apply(source))) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that are mutated: no messages, assertions, annotations and decorators, no `strict=`."""
    yield node
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.JoinedStr | ast.Assert | ast.Raise) or getattr(child, "arg", None) == "strict":
                continue
            if isinstance(child, ast.AST) and name not in SKIPPED_FIELDS:
                yield from _nodes(child)


def _places(node: ast.AST, span: Span, source: bytes) -> Iterator[tuple[int, int, list[str]]]:
    """Yield the bytes of a node that can be replaced, and by what."""
    match node:
        case ast.Compare(left=left, comparators=rest) | ast.BoolOp(values=[left, *rest]):
            yield from _operators([left, *rest], span, source)
        case ast.BinOp(op=ast.Div(), right=ast.Constant(value=str())):
            return  # a path
        case ast.BinOp(left=left, right=right):
            yield from _operators([left, right], span, source)
        case ast.AugAssign(target=left, value=right):
            yield from _operators([left, right], span, source)
            yield *span(node), ["pass"]
        case ast.UnaryOp(op=ast.Not()):
            yield span(node)[0], span(node)[0] + len("not"), [""]
        case ast.Constant(value=bool(value)):
            yield *span(node), [str(not value)]
        case ast.Constant(value=int(value)):
            yield *span(node), [str(value + 1), str(value - 1)]
        case ast.Constant(value=float(value)):
            yield *span(node), [str(2 * value or 1.0), str(value / 2 or -1.0)]
        case ast.Expr(value=ast.Call()):
            yield *span(node), ["None"]
        case ast.Continue() | ast.Break():
            yield *span(node), ["pass"]
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in OPPOSITES:
            end = span(node.func)[1]
            yield end - len(name), end, [OPPOSITES[name]]
        case ast.Call(func=called, args=[first, second, *_]) if _may_swap(called, first):
            (start, middle), (rest, end) = span(first), span(second)
            swapped = source[rest:end] + source[middle:rest] + source[start:middle]
            yield start, end, [swapped.decode()]


def _may_swap(called: ast.AST, first: ast.AST) -> bool:
    """Return whether the first two arguments of a call may be swapped, and that matters."""
    return getattr(called, "attr", getattr(called, "id", "")) not in SYMMETRIC and not isinstance(first, ast.Starred)


def _operators(operands: Sequence[ast.AST], span: Span, source: bytes) -> Iterator[tuple[int, int, list[str]]]:
    for left, right in itertools.pairwise(operands):
        start, end = span(left)[1], span(right)[0]
        if found := OPERATOR.search(source[start:end].decode("latin-1")):
            yield start + found.start(), start + found.end(), OPERATORS[found[0]]
