"""Runs and texts that several modules measure."""

import pytest

from tests.cli.small_runs import TEXT, make_run

WIDE = "한국어 👩‍👩‍👧 e\u0301 <b>&amp;\t\x1b[31m\x07end\n🇰🇷🇩🇪.\n"


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Runs that were never trained, with tokenizers and positions of several kinds."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        "bpe": make_run(folder / "bpe"),
        "char": make_run(folder / "char", kind="char"),
        "learned": make_run(folder / "learned", positions="learned"),
        "encoder": make_run(folder / "encoder", n_encoder_layers=1, positions="sinusoidal"),
    }


@pytest.fixture
def texts(tmp_path):
    """A folder with two texts."""
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.txt").write_text("The fox.\n<|endoftext|>\nThe owl.\n")
    return tmp_path


@pytest.fixture
def wide(tmp_path):
    """A text with characters of every width, control characters and HTML."""
    (tmp_path / "wide.txt").write_text(WIDE)
    return tmp_path / "wide.txt"
