"""A server on this machine, which nothing waits for longer than it must."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lm.text.public import download
from tests.lm.text.public.fetched import DATA
from tests.lm.text.public.file_server import FileServer, serving


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "PAUSES", (0.0, 0.0))
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serving() as running:
        running.files["a.txt"] = DATA
        yield running
