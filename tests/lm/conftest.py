"""The order in which things come to be on the disk, tokenizers that were made elsewhere, and compiled code."""

import os
from pathlib import Path

import pytest

from lm.kernels import code_cache
from lm.tokenizer import Tokenizer
from tests.lm.machine_code import kept_code
from tests.lm.tokenizers_elsewhere import MADE, backend


def pytest_configure(config: pytest.Config) -> None:
    """The compiler, which asks for this when it is imported, keeps code where other tests find it, and the next run."""
    if code_cache.is_installed():
        with kept_code(config) as folder:
            os.environ["NUMBA_CACHE_DIR"] = str(folder)


class DiskJournal:
    """What was waited for and what was renamed below a folder, by the names at that time; both really happen."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entries: list[tuple[str, str]] = []
        self._root, self._fsync = root, os.fsync
        monkeypatch.setattr(os, "fsync", self.fsync)
        for name in ("replace", "rename"):
            monkeypatch.setattr(os, name, self._renaming(getattr(os, name)))

    def fsync(self, descriptor: int) -> None:
        self._fsync(descriptor)
        found = os.fstat(descriptor)
        names = (path.name for path in self._root.rglob("*") if os.path.samestat(path.stat(), found))
        self.entries.append(("sync", next(names, "")))

    def synced_before(self, name: str) -> set[str]:
        """What was waited for before something was renamed to a name, each by the name it had then or got later."""
        renamed = next(at for at, (what, to) in enumerate(self.entries) if to.endswith(f" -> {name}"))
        later = dict(names.split(" -> ") for what, names in self.entries[: renamed + 1] if what == "rename")
        return {later.get(synced, synced) for what, synced in self.entries[:renamed] if what == "sync"}

    def _renaming(self, real):
        def rename(source, target, **places) -> None:
            real(source, target, **places)
            self.entries.append(("rename", f"{Path(source).name} -> {Path(target).name}"))

        return rename


@pytest.fixture
def disk(tmp_path, monkeypatch) -> DiskJournal:
    return DiskJournal(tmp_path, monkeypatch)


@pytest.fixture(params=list(MADE))
def elsewhere(request) -> Tokenizer:
    """A tokenizer that was made elsewhere, one of each kind."""
    return Tokenizer(backend(request.param))


@pytest.fixture
def gpt2() -> Tokenizer:
    return Tokenizer(backend("gpt2"))


@pytest.fixture
def cl100k() -> Tokenizer:
    return Tokenizer(backend("cl100k"))
