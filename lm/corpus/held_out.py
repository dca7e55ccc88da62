"""What is held out for validation: decided by hashes of the texts, so that equal texts are in the same split.

What of a text is hashed is up to each kind of data. Of running text in few documents the end is held out instead.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Iterator
from fractions import Fraction

from lm.errors import UsageError
from lm.text.documents import Fragment

FEWEST_DOCUMENTS = 100
"""In a corpus of fewer documents, examples or pairs, the hashes of all of them may be far from evenly spread."""


def held_out_fraction(validation: str) -> Fraction | None:
    """The number that `--validation` gives; None if it names files.

    Raises:
        UsageError: it is not from 0 to below 1.
    """
    try:
        fraction = Fraction(validation)
    except (ValueError, ZeroDivisionError):
        return None
    if not 0 <= fraction < 1:
        raise UsageError(
            f"validation must be a fraction from 0 to below 1, or files, not {validation}", settings=["validation"]
        )
    return fraction


def text_hash(text: str) -> int:
    """A hash of a text, spread evenly over 0 … 2**64 - 1: a text is held out if its hash lies below a bound."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def hash_bound(fraction: Fraction, few: Collection[int] | None = None) -> int:
    """The bound below which hashes are held out.

    Args:
        fraction: of the texts that is to be held out.
        few: the hashes of all texts, where these are fewer than `FEWEST_DOCUMENTS`: then that share of them is held
            out, but at least one.
    """
    if not fraction or few is None:
        return math.ceil(fraction * 2**64)
    return sorted(few)[max(1, int(len(few) * fraction))] if len(few) > 1 else 0


def divided_at(fragments: Iterable[Fragment], boundary: int) -> Iterator[Fragment]:
    """The fragments with a new document begun at a boundary (in bytes), or at the first character after it."""
    for fragment in fragments:
        data = fragment.text.encode()
        while 0 < boundary < len(data) and data[boundary] & 0xC0 == 0x80:  # inside a character
            boundary += 1
        if 0 < boundary < len(data):
            yield Fragment(data[:boundary].decode(), fragment.starts_document)
            yield Fragment(data[boundary:].decode(), starts_document=True)
        else:
            yield Fragment(fragment.text, fragment.starts_document or boundary == 0)
        boundary -= len(data)
