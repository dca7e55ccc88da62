"""A file that a server has, and fetching it."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

from lm.text.public.catalogue import PublicFile
from lm.text.public.fetching import FetchedFile, fetch_file
from tests.lm.text.public.file_server import FileServer

DATA = random.Random(1).randbytes(3_000_000)
DIGEST = hashlib.sha256(DATA).hexdigest()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def get(server: FileServer, folder: Path, sha256: str | None = DIGEST) -> FetchedFile:
    return fetch_file(PublicFile(server.url("a.txt"), len(DATA), sha256), folder)
