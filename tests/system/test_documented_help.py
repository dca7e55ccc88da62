"""docs/commands.md says what the commands say."""

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import documented_help

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
COMMANDS = dict(documented_help.commands())
HELPS = dict(documented_help.helps())


def documented() -> dict[str, str]:
    """Command to the help that the page gives it."""
    return dict(re.findall(r"^## ([^\n]+)\n\n```text\n(.*?)\n```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("command", HELPS)
def test_a_command_says_what_the_page_says(command):
    there, now = documented().get(command, "").splitlines(), HELPS[command].splitlines()
    changed = "\n".join(difflib.unified_diff(there, now, "docs/commands.md", f"{command} --help", lineterm=""))
    assert not changed, f"{changed}\n\nmake docs writes the page again"


def test_the_page_knows_no_other_command():
    assert sorted(documented()) == sorted(HELPS), "make docs writes the page again"


def test_the_page_of_the_server_has_its_fields():
    page = PAGE.parent / "reference" / "server.md"
    assert page.read_text(encoding="utf-8") == documented_help.server_page(), "make docs writes the page again"


def test_the_page_is_what_a_person_sees():
    """On a terminal as wide as the page, in a process of its own and whatever the environment says."""
    environment = {**os.environ, "COLUMNS": str(documented_help.WIDTH + 2), "LM_STEPS": "3", "LM_OUT": "elsewhere"}
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", "demo", "--help"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=900,
    )
    assert done.stdout.strip() == HELPS["lm demo"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_explained_in_a_sentence(command):
    for parameter in COMMANDS[command].params:
        text = parameter.help or ""
        assert text[:1].isupper() or not text[:1].isalpha(), f"{parameter.opts}: {text!r}"
        assert text.endswith((".", "].", "…", "]")), f"{parameter.opts}: {text!r}"
