"""What `make test-newest` would install, and how large that is."""

import pytest

from tests.newest import PACKAGES, ROOT, constraints, total_bytes, wheels


@pytest.mark.parametrize("name", PACKAGES)
def test_pins_are_dropped_for_what_is_tested_in_its_newest_version(name):
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    kept = constraints(PACKAGES[name]).splitlines()
    dropped = {line.partition("==")[0] for line in set(pins) - set(kept)}
    assert dropped == {pin.partition("==")[0] for pin in PACKAGES[name]}
    assert set(kept) - set(pins) == {pin for pin in PACKAGES[name] if "==" in pin}


def test_the_size_of_what_pip_would_install(tmp_path):
    urls = []
    for size in (3, 50):
        (tmp_path / f"{size}.whl").write_bytes(bytes(size))
        urls.append((tmp_path / f"{size}.whl").as_uri())
    report = {
        "install": [
            {"metadata": {"name": "Torch", "version": "9.1"}, "download_info": {"url": urls[0], "archive_info": {}}},
            {"metadata": {"name": "numpy", "version": "8.0"}, "download_info": {"url": urls[1], "archive_info": {}}},
            {"metadata": {"name": "lm", "version": "1"}, "download_info": {"url": ROOT.as_uri(), "dir_info": {}}},
        ]
    }
    found = wheels(report)
    assert found == {"torch": ("9.1", urls[0]), "numpy": ("8.0", urls[1])}
    assert total_bytes(url for _, url in found.values()) == 53
