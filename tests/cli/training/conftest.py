"""A text with a run that was trained on it, and pairs, that several modules use."""

import pytest

from tests.system.conftest import place  # noqa: F401 (a fixture)


@pytest.fixture
def pairs(tmp_path):
    """Flags that name files of pairs."""
    for language in ("en", "de"):
        (tmp_path / f"text.{language}").write_text("".join(f"{number} {language}\n" for number in range(200)))
    return ["--source", str(tmp_path / "text.en"), "--target", str(tmp_path / "text.de")]
