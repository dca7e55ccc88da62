"""Measure how spread out the code is: `python -m tests.structure [TREE ...] [--json]`, of this checkout or of others.

Sizes are of the packages `lm` and `cli`: lines; modules (`__init__.py` only where it holds code); modules of less than
40 lines; modules that one other module imports; class names that occur twice; edges of the import graph, of modules and
of packages. Imports inside functions and under TYPE_CHECKING count.

A path is measured by running a command in a fresh process and noting which modules of the tree are on the call stack
whenever data are touched: text, token IDs or tensors. A module counts once, however many of its functions are there.
The command runs once before it is traced, so that imports are not part of it.

prompt to token    `lm generate RUN PROMPT --max-tokens 1`: at each call of a C function of torch or tokenizers,
                   from the encoding of the prompt on; loading the model comes before
text to loss       `lm train FILE --steps 1` without cached tokens: when FILE or an array of tokens is opened, when
                   tokenizers encodes, and in the forward pass (embedding, linear, attention, matmul) up to the first
                   backward pass
flag to use        `lm generate … --temperature 0.731`: modules with a function that is given this number: as an
                   argument, or within two levels of an argument's items or attributes
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGES = ("lm", "cli")
SHORT = 40
_TEMPERATURE = 0.731
_LARGEST = 200
"""Items of a collection up to which a number is looked for in it."""
_FORWARD = {"embedding", "linear", "scaled_dot_product_attention", "matmul", "mm", "addmm"}
_ENCODING = {"encode", "encode_batch", "encode_batch_fast"}
_HARDWARE = ("--device", "cpu", "--dtype", "float32", "--threads", "1")
_TEXT = Path(__file__).parent / "golden" / "text" / "stories.txt"


def main() -> None:
    """Print the counts of each tree in columns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", nargs="*", type=Path, default=[Path(__file__).parents[1]], help="root of a checkout")
    parser.add_argument("--json", action="store_true", help="print JSON, with the names of modules on each path")
    given = parser.parse_args()
    found = {str(tree): sizes(tree.resolve()) | paths(tree.resolve()) for tree in given.tree}
    if given.json:
        print(json.dumps(found, indent=1))
        return
    for name in next(iter(found.values())):
        values = [each[name] for each in found.values()]
        print(f"{name:32}", *(f"{len(value) if isinstance(value, list) else value:8}" for value in values))


def sizes(tree: Path) -> dict[str, int]:
    """Count what can be seen in the source."""
    files = [path for package in PACKAGES for path in sorted((tree / package).rglob("*.py"))]
    sources = {_name(path.relative_to(tree)): path.read_text(encoding="utf-8") for path in files}
    lines = {name: len(source.splitlines()) for name, source in sources.items()}
    trees = {name: ast.parse(source) for name, source in sources.items()}
    packages = {_name(path.relative_to(tree)) for path in files if path.name == "__init__.py"}
    modules = {name for name in sources if name not in packages or _holds_code(trees[name])}
    importers = defaultdict(set)
    for name, parsed in trees.items():
        for imported in _imports(parsed, set(sources)):
            if imported != name:
                importers[imported].add(name)
    classes = Counter(
        node.name for parsed in trees.values() for node in ast.walk(parsed) if isinstance(node, ast.ClassDef)
    )
    edges = {(importer, name) for name, by in importers.items() for importer in by}
    of_packages = {(_package(importer), _package(name)) for importer, name in edges}
    return {
        "lines": sum(lines.values()),
        "modules": len(modules),
        f"modules under {SHORT} lines": sum(lines[name] < SHORT for name in modules),
        "modules with one importer": sum(len(importers[name]) == 1 for name in modules),
        "duplicate class names": sum(count > 1 for count in classes.values()),
        "import edges": len(edges),
        "import edges of packages": sum(importer != name for importer, name in of_packages),
    }


def paths(tree: Path) -> dict[str, list[str]]:
    """Trace the three paths in a process that imports the tree."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LM_")}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-P", __file__, "--trace", folder],
            env=environment | {"PYTHONPATH": str(tree), "LM_CACHE": str(Path(folder, "cache"))},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        sys.exit(done.stderr)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _package(module: str) -> str:
    """The first two parts of a module's name."""
    return ".".join(module.split(".")[:2])


def _holds_code(parsed: ast.Module) -> bool:
    return any(not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) for node in parsed.body)


def _imports(parsed: ast.Module, known: set[str]) -> Iterator[str]:
    """The modules of the tree that a module imports: of `from package import name` the module, if it is one."""
    for node in ast.walk(parsed):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in known:
                    yield full
                elif node.module in known:
                    yield node.module


class Tracer:
    """Notes the modules of a tree that are on the call stack at chosen events."""

    def __init__(self, tree: str, wants: Callable[[FrameType, str, Any], bool]) -> None:
        self._tree, self._wants = tree, wants
        self.modules: set[str] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Called by Python at each call and return."""
        if self._wants(frame, event, argument):
            self.note(frame)

    def note(self, frame: FrameType | None) -> None:
        """Add all modules on the stack."""
        while frame is not None:
            self.note_one(frame)
            frame = frame.f_back

    def note_one(self, frame: FrameType) -> None:
        """Add the module of one frame, unless it is being imported."""
        code = frame.f_code
        inside = code.co_filename.removeprefix(self._tree)
        if code.co_name != "<module>" and inside.startswith(tuple(f"{package}{os.sep}" for package in PACKAGES)):
            self.modules.add(_name(Path(inside)))

    def run(self, work: Callable[[], object]) -> list[str]:
        """Trace some work in all threads; returns the modules that were noted."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            work()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        return sorted(self.modules)


def _trace(folder: Path) -> None:
    """Run the commands in this process and print the modules on their paths."""
    import lm
    from cli.main import run

    assert lm.__file__ is not None
    tree = str(Path(lm.__file__).parents[1]) + os.sep
    trained = folder / "run"

    def train(out: Path) -> None:
        arguments = "--preset tiny --d-model 32 --n-layers 1 --context 32 --vocab-size 300 --batch-size 4 --steps 1"
        code = run(["train", str(_TEXT), *arguments.split(), "--evaluate-every", "0", *_HARDWARE, "-o", str(out)])
        assert code == 0

    def generate() -> None:
        arguments = ["--max-tokens", "1", "--temperature", str(_TEMPERATURE), "--seed", "1", "--no-stats"]
        assert run(["generate", str(trained), "The road", *arguments, *_HARDWARE]) == 0

    train(trained)
    generate()
    counts = {"prompt to token": _prompt_path(tree, generate), "flag to use": _flag_path(tree, generate)}
    os.environ["LM_CACHE"] = str(folder / "empty")
    counts["text to loss"] = _text_path(tree, lambda: train(folder / "second"))
    print(json.dumps(counts))


def _prompt_path(tree: str, work: Callable[[], None]) -> list[str]:
    has_begun = False

    def wants(_frame: FrameType, event: str, argument: Any) -> bool:
        nonlocal has_begun
        package = _c_package(argument) if event == "c_call" else ""
        has_begun = has_begun or (package == "tokenizers" and argument.__name__ in _ENCODING)
        return has_begun and package in {"torch", "tokenizers"}

    return Tracer(tree, wants).run(work)


def _text_path(tree: str, work: Callable[[], None]) -> list[str]:
    is_forward = True

    def wants(_frame: FrameType, event: str, argument: Any) -> bool:
        nonlocal is_forward
        if event != "c_call":
            return False
        is_forward = is_forward and argument.__name__ != "run_backward"
        package = _c_package(argument)
        return (package == "tokenizers" and argument.__name__ in _ENCODING) or (
            is_forward and package == "torch" and argument.__name__ in _FORWARD
        )

    tracer = Tracer(tree, wants)

    def opened(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and is_forward and str(arguments[0]).endswith((_TEXT.name, ".npy")):
            tracer.note(sys._getframe())

    sys.addaudithook(opened)
    return tracer.run(work)


def _flag_path(tree: str, work: Callable[[], None]) -> list[str]:
    tracer = Tracer(tree, lambda *_: False)

    def wants(frame: FrameType, event: str, _argument: Any) -> bool:
        if event == "call" and frame.f_code.co_filename.startswith(tree):
            code = frame.f_code
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 2]
            sys.setprofile(None)
            if any(_holds(frame.f_locals[name], 2) for name in names if name in frame.f_locals):
                tracer.note_one(frame)
            sys.setprofile(tracer)
        return False

    tracer._wants = wants
    return tracer.run(work)


def _holds(value: Any, depth: int) -> bool:
    """Whether a value is the traced number, or has it among its items or attributes."""
    if isinstance(value, (float, str)):
        return value in {_TEMPERATURE, str(_TEMPERATURE)}
    if depth == 0 or isinstance(value, (type, type(sys))):
        return False
    items = value if isinstance(value, (dict, list, tuple)) else getattr(value, "__dict__", ())
    if not isinstance(items, (dict, list, tuple)) or len(items) > _LARGEST:
        return False
    return any(_holds(each, depth - 1) for each in (items.values() if isinstance(items, dict) else items))


def _c_package(function: Any) -> str:
    """The package of a C function or of the object whose method it is."""
    owner = getattr(function, "__self__", None)
    module = getattr(function, "__module__", None) or getattr(type(owner), "__module__", None) or ""
    return str(module).partition(".")[0]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--trace"]:
        _trace(Path(sys.argv[2]))
    else:
        main()
