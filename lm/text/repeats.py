"""Equal texts told apart by how often each came before."""

from __future__ import annotations

import hashlib

_BYTES = 8


class Repeats:
    """Counts texts; each is known by a hash of 8 bytes, so that many long ones take little memory."""

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}

    def count(self, text: str) -> int:
        """How often a text was counted before this call, which counts it once more."""
        key = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=_BYTES).digest()
        before = self._counts.get(key, 0)
        self._counts[key] = before + 1
        return before
