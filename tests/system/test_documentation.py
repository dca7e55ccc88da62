"""README and docs: links and pictures exist, and every `lm` command parses."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documented_help import commands

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = {path.partition(" ")[2]: command for path, command in commands()}


def documented_commands(page: Path) -> Iterator[list[str]]:
    """The arguments of each `$ lm …` line in a page's transcripts, up to a comment, pipe or redirection."""
    for line in page.read_text(encoding="utf-8").splitlines():
        for part in (
            re.split(r" \| | && ", line.strip().partition("$ ")[2]) if "$ lm " in line or "| lm " in line else ()
        ):
            if part.startswith("lm "):
                yield shlex.split(re.split(r" > |  +#|…", part)[0])[1:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_and_pictures_of_a_page_exist(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_of_a_page_parse(page):
    for words in documented_commands(page):
        name = " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]
        command = COMMANDS[name]
        command.make_context(name, words[len(name.split()) :])


def test_every_page_is_linked_from_the_readme_or_from_a_page_it_links():
    seen, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in seen and page.exists():
            seen.add(page)
            targets = re.findall(r"\]\(([^)#\s]+\.md)", page.read_text(encoding="utf-8"))
            waiting += [(page.parent / target).resolve() for target in targets if "://" not in target]
    assert set(PAGES) <= seen
