"""Where a large file can be divided: at ends of documents, so that its parts can be read by different processes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from lm.text import parquet
from lm.text.compression import compression
from lm.text.files import Span, TextFile
from lm.text.grouping import grouped

_BLOCK_BYTES = 1 << 20


def spans(file: TextFile, separator: str, *, size: int) -> list[Span] | None:
    """Parts of a file of at least `size` bytes each, but the last, that together are the file.

    They depend on the bytes of the file alone. Each begins with a document and ends with one.

    Args:
        file: the file.
        separator: the line that ends a document, where the file has no rows.
        size: in bytes.

    Returns:
        None for a file that has to be read as a whole: it is small, or compressed, or its lines are numbered.
    """
    if file.is_parquet and not file.supervised:
        return _row_groups(file, size)
    total = file.path.stat().st_size
    if total <= size or file.supervised or "\n" in separator or compression(file.path, file.name):
        return None
    document_end = rb"\n" if file.is_json_lines else rb"\n" + re.escape(separator.encode()) + rb"\r?\n"
    ends = list(_ends(file.path, re.compile(document_end), size, longest=len(separator.encode()) + 3))
    starts = [0, *ends]
    return [Span(start, stop) for start, stop in zip(starts, [*ends, total], strict=True)]


def _row_groups(file: TextFile, size: int) -> list[Span] | None:
    """The fewest neighbouring row groups that have `size` bytes, again and again; None if all are needed for that."""
    sizes = parquet.group_bytes(file.path, name=file.name)
    groups = grouped(range(len(sizes)), lambda group: sizes[group], limit=size)
    found = [Span(group[0], group[-1] + 1) for group in groups]
    return found if len(found) > 1 else None


def _ends(path: Path, document_end: re.Pattern[bytes], size: int, *, longest: int) -> Iterator[int]:
    """Where the documents end that are the first to do so `size` bytes after the place before, except the last one.

    A match of the pattern has at most `longest` bytes.
    """
    total, end = path.stat().st_size, 0
    while (found := _end_after(path, document_end, end + size, longest)) is not None and found < total:
        yield found
        end = found


def _end_after(path: Path, pattern: re.Pattern[bytes], place: int, longest: int) -> int | None:
    """Where the first match at or after a place in a file ends; None if there is none."""
    kept = b""
    with path.open("rb") as stream:
        stream.seek(place)
        while block := stream.read(_BLOCK_BYTES):
            data = kept + block
            if found := pattern.search(data):
                return place + found.end()
            kept = data[-longest:]
            place += len(data) - len(kept)
    return None
