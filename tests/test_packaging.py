"""What a wheel contains."""

import hashlib
import re
import subprocess
import tomllib
from importlib import resources
from pathlib import Path

import pytest

import corpora

ROOT = Path(__file__).parents[1]
WEB = ROOT / "lm" / "serving" / "web"
TEXTS = [f"{name}/{file.name}" for name in ("stories", "parallel") for file in corpora.path(name).iterdir()]


def test_types_of_the_package_are_published():
    """Type checkers read annotations of an installed package only if it holds `py.typed`."""
    assert resources.files("lm").joinpath("py.typed").is_file()
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert "lm" in wheel["packages"]  # hatchling takes all files of these
    assert not wheel.keys() & {"exclude", "only-include"}
    ignored = subprocess.run(["git", "-C", str(ROOT), "check-ignore", "-q", "lm/py.typed"], check=False)
    assert ignored.returncode != 0  # but for those that git ignores


def test_shipped_texts_are_those_that_their_readme_lists():
    """To the byte, so also where git would change line ends."""
    listed = re.findall(r"`(.+?)`.*\| ([\d,]+) \| `(\w{64})`", corpora.path("README.md").read_text(encoding="utf-8"))
    found = {name: corpora.path(name).read_bytes() for name in TEXTS}
    assert sorted(listed) == sorted(
        (name, f"{len(text):,}", hashlib.sha256(text).hexdigest()) for name, text in found.items()
    )


def test_a_wheel_holds_every_module_the_texts_the_web_page_and_the_marker():
    wheel = pytest.importorskip("hatchling.builders.wheel")
    files = {file.distribution_path for file in wheel.WheelBuilder(str(ROOT)).recurse_included_files()}
    shipped = [ROOT / "lm/py.typed", *(ROOT / "lm").rglob("*.py"), *WEB.iterdir(), *map(corpora.path, TEXTS)]
    assert {path.relative_to(ROOT).as_posix() for path in shipped} <= files
