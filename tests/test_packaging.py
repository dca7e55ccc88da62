"""What a wheel contains."""

import subprocess
import tomllib
from importlib import resources
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_types_of_the_package_are_published():
    """Type checkers read annotations of an installed package only if it holds `py.typed`."""
    assert resources.files("lm").joinpath("py.typed").is_file()
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert "lm" in wheel["packages"]  # hatchling takes all files of these
    assert not wheel.keys() & {"exclude", "only-include"}
    ignored = subprocess.run(["git", "-C", str(ROOT), "check-ignore", "-q", "lm/py.typed"], check=False)
    assert ignored.returncode != 0  # but for those that git ignores


def test_a_wheel_holds_every_module_and_the_marker():
    wheel = pytest.importorskip("hatchling.builders.wheel")
    files = {file.distribution_path for file in wheel.WheelBuilder(str(ROOT)).recurse_included_files()}
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "lm").rglob("*.py")} | {"lm/py.typed"} <= files
