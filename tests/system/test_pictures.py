"""The pictures of README and docs are self-contained, and the screens they show are what a terminal would show."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_pictures_of_the_readme_and_the_docs_are_portable():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = {
        page.parent / name
        for page in pages
        for name in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    }
    assert len(shown) >= 3
    for name in shown:
        data = name.read_bytes()
        assert data.startswith((b"<svg", b"\x89PNG"))
        assert not re.search(rb"@font-face|/root/|/home/|/tmp/|cache/", data), name


def test_the_first_picture_is_short_and_ends_with_a_sample():
    drawn = (ROOT / "docs/pictures/training.svg").read_text(encoding="utf-8")
    lines = set(re.findall(r"training-line-(\d+)\)", drawn))
    assert len(lines) <= 14
    assert "lm&#160;generate" in drawn
