"""Sentences of the Markdown pages, and their length: `python -m tests.prose [PAGE ...]` lists the longest.

Code, tables, headings and pictures are left out. A link counts as its text, and a list item is a paragraph.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_WORDS = 40
"""Words of a sentence."""
MAX_MEAN = {"README.md": 18.0}
"""Mean words per sentence, of pages with a limit of their own."""
MAX_MEAN_OF_OTHERS = 22.0

_FENCE = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_ITEM = re.compile(r"^ *(?:[-*]|\d+\.) ")
_END = re.compile(r"(?<=[.!?])[\"”*_)`]*\s+(?=[\"“*_(`]*[A-Z0-9`])")
_ABBREVIATIONS = re.compile(r"\b(et al|e\.g|i\.e|vs|cf|Fig|Eq|approx)\.\s")


def sentences(text: str) -> list[str]:
    """Return the sentences of a page of Markdown."""
    found = []
    for paragraph in paragraphs(text):
        plain = _ABBREVIATIONS.sub(lambda match: f"{match[1]} ", paragraph)
        found += [sentence for sentence in _END.split(plain) if words(sentence)]
    return found


def paragraphs(text: str) -> list[str]:
    """Return the paragraphs and list items of a page, each on one line, links replaced by their texts."""
    text = re.sub(r"<!--.*?-->", "", _FENCE.sub("", text), flags=re.DOTALL)
    made: list[list[str]] = [[]]
    is_code = False
    for line in text.splitlines():
        is_code = line.startswith("    ") and (is_code or not made[-1] or not line.strip())
        if not line.strip() or is_code or line.lstrip().startswith(("|", "#", "!", "<")):
            made.append([])
        elif _ITEM.match(line):
            made.append([_ITEM.sub("", line)])
        else:
            made[-1].append(line.strip())
    return [_LINK.sub(r"\1", " ".join(lines)) for lines in made if lines]


def words(sentence: str) -> list[str]:
    """Return the words of a sentence; inline code is one."""
    return re.findall(r"[\w’'+\-/.,%×]*\w[\w’'+\-/.,%×]*", re.sub(r"`[^`]*`", "code", sentence))


def mean_words(text: str) -> float:
    """Return the mean number of words per sentence of a page; 0 for one without sentences."""
    found = sentences(text)
    return sum(len(words(sentence)) for sentence in found) / len(found) if found else 0.0


def main() -> None:
    """Print each page's mean, and its sentences of more than MAX_WORDS words."""
    pages = [Path(name) for name in sys.argv[1:]] or [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        print(f"{page}: {mean_words(text):.1f} words per sentence")
        for sentence in sentences(text):
            if len(words(sentence)) > MAX_WORDS:
                print(f"    {len(words(sentence))}: {sentence}")


if __name__ == "__main__":
    main()
