"""Check that code, docs, help and messages use the field's vocabulary: `python -m tests.vocabulary`.

Each phrase of `PHRASES` has an established term. Phrases are found across line ends and adjacent string literals. A hit
that is right where it stands belongs into `EXCEPTIONS`, with its reason. Exits with 1 if there are other hits.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATHS = ("lm", "cli", "tests", "docs", "corpora", "README.md", "Makefile", "pyproject.toml")
PHRASES = {
    r"whole numbers?": "integer",
    r"types? of numbers": "dtype",
    r"weights of 8 bits": "int8 weights",
    r"bits a byte": "bits/byte",
    r"tokens a step": "tokens/step",
    r"tokens a second": "tokens/s",
    r"tokens a parameter": "tokens/parameter",
    r"nats a token": "nats/token",
    r"bytes a token": "bytes/token",
    r"products a second": "GMAC/s",
    r"matrix products?": "matmul",
    r"seconds of the processor": "CPU time",
    r"by heart": "memorise, overfit",
    r"anew": "again; resume, regenerate",
    r"(made|make|makes|making) again": "regenerate",
    r"work(s|ed|ing)? out": "compute, predict, estimate",
    r"(go|goes|going|gone|went) on": "continue, resume",
    r"models? that counts?": "n-gram baseline",
    r"what is kept": "cache",
    r"guesses kept": "accepted draft tokens",
    r"even shares": "expert capacity, load balancing",
    r"zero starts": "zero initialisation",
    r"memory at most": "peak memory",
    r"peers?": "comparable tool, baseline",
    r"texts? of both sides": "parallel corpus, source and target",
    r"side by side": "batched, concurrent",
    r"in turns": "interleaved, alternating",
    r"whole or not at all": "atomically",
    r"parts? text into words": "pre-tokenise",
    r"from block to block": "activation checkpointing",
    r"largest norm": "gradient clipping",
    r"gate that sends": "router, top-k gating",
    r"guess(es)? for a large": "speculative decoding, draft model",
    r"leave their places": "continuous batching",
    r"reading a prompt": "prefill",
    r"texts? of the world": "real-world text",
}
"""Patterns of whole words, and what to write instead."""
EXCEPTIONS = (("tests/vocabulary.py", ".*", "the list itself"),)
"""A file, the hits that are right in it, and why."""


def main() -> int:
    """Print each hit with its file, line and replacement; returns the exit code."""
    found = [hit for path in _files() for hit in _hits(path)]
    for line in found:
        print(line)
    return 1 if found else 0


def _files() -> Iterator[Path]:
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z", *PATHS], capture_output=True, check=True).stdout
    for name in listed.decode().split("\0"):
        if Path(name).suffix in {".py", ".md", ".toml", ".sh"} or Path(name).name == "Makefile":
            yield ROOT / name


def _hits(path: Path) -> Iterator[str]:
    name = path.relative_to(ROOT).as_posix()
    if not path.is_file():
        return
    text = path.read_text(encoding="utf-8")
    gap = r"(?:[ \t]|[\"']?[ \t]*\n[ \t]*(?:#[ \t]+|[|>][ \t])?[frb]{0,2}[\"']?)+"
    for phrase, instead in PHRASES.items():
        for hit in re.finditer(rf"\b(?:{phrase.replace(' ', gap)})\b", text, re.IGNORECASE):
            words = " ".join(re.findall(r"\w+", hit.group()))
            if not _is_exception(name, words):
                line = text.count("\n", 0, hit.start()) + 1
                yield f"{name}:{line}: {words!r}; write {instead}"


def _is_exception(name: str, words: str) -> bool:
    return any(fnmatch(name, file) and re.fullmatch(right, words, re.IGNORECASE) for file, right, _ in EXCEPTIONS)


if __name__ == "__main__":
    sys.exit(main())
