"""The pages of help in docs are derived from the options: every default, choice and unit there is one of the code."""

import difflib
import re
from pathlib import Path

import pytest

from tests import documented_help

DOCS = Path(__file__).parents[3] / "docs"
HELPS = dict(documented_help.helps())


def difference(page: Path, there: str, now: str) -> str:
    changed = difflib.unified_diff(there.splitlines(), now.splitlines(), str(page), "now", lineterm="")
    return "\n".join([*changed, "", "make docs writes the page again"])


def documented() -> dict[str, str]:
    """Command to the help that the page gives it."""
    page = (DOCS / "commands.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^## ([^\n]+)\n\n```text\n(.*?)\n```$", page, flags=re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("command", HELPS)
def test_a_command_says_what_the_page_says(command):
    there = documented().get(command, "")
    assert there == HELPS[command], difference(DOCS / "commands.md", there, HELPS[command])


def test_the_page_knows_no_other_command():
    assert sorted(documented()) == sorted(HELPS), "make docs writes the page again"


def test_the_page_of_settings_has_all_of_them():
    page = DOCS / "reference" / "settings.md"
    there, now = page.read_text(encoding="utf-8"), documented_help.settings_page()
    assert there == now, difference(page, there, now)
