"""Help as a person sees it, and the page of the server."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import documented_help

SERVER = Path(__file__).parents[2] / "docs" / "reference" / "server.md"
COMMANDS = dict(documented_help.commands())


def test_the_page_of_the_server_has_its_fields():
    assert SERVER.read_text(encoding="utf-8") == documented_help.server_page(), "make docs writes the page again"


def test_the_page_is_what_a_person_sees():
    """As wide as the page, in a process of its own and whatever the environment says."""
    environment = {**os.environ, "COLUMNS": str(documented_help.WIDTH), "LM_STEPS": "3", "LM_OUT": "elsewhere"}
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", "plot", "--help"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=900,
    )
    shown = "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())
    assert shown == dict(documented_help.helps())["lm plot"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_explained_in_a_sentence(command):
    for parameter in COMMANDS[command].params:
        text = parameter.help or ""
        assert text[:1].isupper() or not text[:1].isalpha(), f"{parameter.opts}: {text!r}"
        assert text.endswith((".", "].", "…", "]")), f"{parameter.opts}: {text!r}"
