"""Stream the documents of text files in bounded memory.

A file of rows (JSON Lines, a JSON array, CSV, TSV, Parquet) has one document per row, in one field or column. For
supervised data (see `examples`), prompt and completion together are the document; of a conversation (see
`conversations`), the contents of its messages, a line each.

Any other text file is one document, unless it has separator lines: a line that is exactly the separator, ended by LF,
CRLF or the end of the file. A separator line ends a document and belongs to none, its own line end included; the line
end before it stays with the document that it ends. Line ends become LF unless they are to be kept (see
`normalization`); white space is kept. Empty documents are dropped.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from lm.text import conversations, examples, parquet, text_files
from lm.text.compression import detect_compression
from lm.text.normalization import TextChanges
from lm.text.text_files import BlockCallback, FileRange, TextFile

T = TypeVar("T")


def group_by_size(items: Iterable[T], size: Callable[[T], int], *, limit: int) -> Iterator[list[T]]:
    """Yield lists of consecutive items; a list ends with the item whose size brings the total to `limit` or more."""
    group: list[T] = []
    total = 0
    for item in items:
        group.append(item)
        total += size(item)
        if total >= limit:
            yield group
            group, total = [], 0
    if group:
        yield group


@dataclass(frozen=True)
class TextPiece:
    """A non-empty part of a document, of bounded size.

    Attributes:
        starts_document: whether it is the first piece of its document.
        context: preceding text, to be tokenized with it.
        context_tokens: how many first tokens belong to the context, to be dropped.
    """

    text: str
    starts_document: bool
    context: str = ""
    context_tokens: int = 0


@dataclass(frozen=True)
class FileSummary:
    """Counts and checksum from one pass over a file.

    Attributes:
        sha256: checksum of its decompressed bytes.
        size: number of decompressed bytes.
        bytes: UTF-8 bytes of the normalised text, without separators, whatever the encoding of the file.
        squared_bytes: sum over the documents of their bytes squared.
        changes: what normalisation found and, unless it is to be kept, removed.
    """

    file: TextFile
    sha256: str
    size: int
    documents: int
    bytes: int
    squared_bytes: int
    changes: TextChanges = field(default_factory=TextChanges)

    @property
    def identity(self) -> str:
        """Return what determines the documents: checksum, fields read, and non-default decoding."""
        fields: Sequence[str] = ()
        if self.file.holds_conversations:
            fields = conversations.CONVERSATION_FIELDS
        elif self.file.supervised:
            fields = self.file.label_fields or examples.EXAMPLE_FIELDS
        elif self.file.holds_rows:
            fields = (self.file.text_field,)
        return " ".join(filter(None, (self.sha256, *fields, self.read_as)))

    @property
    def read_as(self) -> str:
        """Describe how the text was decoded, where that is not the default."""
        return self.file.read_as(self.changes)


def scan_file(file: TextFile, separator: str) -> FileSummary:
    """Read a file once and return its checksum, counts and normalisation changes.

    Raises:
        InputError: it is not a text file.
        UsageError: it isn't clear which of its fields holds the text.
    """
    digest, changes = hashlib.sha256(), TextChanges()
    documents = text_bytes = squared_bytes = document_bytes = size = 0

    def on_block(block: bytes) -> None:
        nonlocal size
        digest.update(block)
        size += len(block)

    for piece in read_pieces(file, separator, on_block=on_block, changes=changes):
        if piece.starts_document:
            documents += 1
            squared_bytes += document_bytes**2
            document_bytes = 0
        piece_bytes = len(piece.text.encode())
        document_bytes += piece_bytes
        text_bytes += piece_bytes
    squared_bytes += document_bytes**2
    return FileSummary(file, digest.hexdigest(), size, documents, text_bytes, squared_bytes, changes)


def read_pieces(
    file: TextFile,
    separator: str,
    *,
    on_block: BlockCallback | None = None,
    file_range: FileRange | None = None,
    changes: TextChanges | None = None,
) -> Iterator[TextPiece]:
    """Yield the documents of a file in pieces of at most a few hundred kilobytes, cut anywhere.

    Args:
        separator: the line that ends a document, for files without rows.
        on_block: called with each decompressed block of bytes as it is read.
        file_range: the part to read, from `split_into_ranges` [default: the whole file].
        changes: records what normalisation finds.

    Raises:
        InputError: the file is not text in its encoding, or is damaged.
    """
    if file.supervised or file.holds_rows:
        for text in _read_row_documents(file, on_block, file_range, changes):
            for start in range(0, len(text), text_files.BLOCK_BYTES):
                yield TextPiece(text[start : start + text_files.BLOCK_BYTES], starts_document=start == 0)
        return
    starts = True
    for part in _split_at_separators(file.text(on_block, file_range, changes), separator):
        if part is None:
            starts = True
        elif part:
            yield TextPiece(part, starts)
            starts = False


def _read_row_documents(
    file: TextFile, on_block: BlockCallback | None, file_range: FileRange | None, changes: TextChanges | None
) -> Iterator[str]:
    if file.supervised and not file.holds_conversations:
        return (example.prompt + example.completion for example in file.examples(on_block, changes))
    return file.documents(on_block, file_range, changes)


def _split_at_separators(blocks: Iterable[str], separator: str) -> Iterator[str | None]:
    """Yield the text of the blocks, with None for each separator line."""
    line = re.compile(rf"{re.escape(separator)}\r?\n")  # what starts a line is checked below: a lookbehind is slow
    unsure = len(separator) + 1  # a separator line that is not complete yet can be this long
    before = "\n"  # the character before `rest`; a file starts with a line
    rest = ""
    for block in blocks:
        buffer, start = before + rest + block, 1
        for match in line.finditer(buffer, 1):
            if buffer[match.start() - 1] == "\n":
                yield buffer[start : match.start()]
                yield None
                start = match.end()
        end = max(start, len(buffer) - unsure)
        yield buffer[start:end]
        before, rest = buffer[end - 1], buffer[end:]
    last = (before + rest).removesuffix("\r")
    yield rest[: len(last) - 1 - len(separator)] if last.endswith("\n" + separator) else rest


_BLOCK_BYTES = 1 << 20


def split_into_ranges(file: TextFile, separator: str, *, size: int) -> list[FileRange] | None:
    """Divide a file into consecutive ranges of at least `size` bytes, except the last, each ending with a document.

    The ranges depend only on the bytes of the file.

    Returns:
        None if the file must be read as a whole: it is small, compressed, not UTF-8, has numbered rows, or its records
        may contain line ends.
    """
    if file.is_parquet and not file.supervised:
        return _split_row_groups(file, size)
    total = file.path.stat().st_size
    is_whole = file.supervised or "\n" in separator or not file.is_utf8 or file.data.strip_gutenberg
    if total <= size or is_whole or file.format not in ("text", "jsonl") or detect_compression(file.path, file.name):
        return None
    document_end = rb"\n" if file.format == "jsonl" else rb"\n" + re.escape(separator.encode()) + rb"\r?\n"
    ends = list(_find_document_ends(file.path, re.compile(document_end), size, longest=len(separator.encode()) + 3))
    starts = [0, *ends]
    return [FileRange(start, stop) for start, stop in zip(starts, [*ends, total], strict=True)]


def _split_row_groups(file: TextFile, size: int) -> list[FileRange] | None:
    """Group consecutive row groups into ranges of at least `size` bytes; None if there is only one range."""
    sizes = parquet.read_row_group_sizes(file.path, name=file.name)
    groups = group_by_size(range(len(sizes)), lambda group: sizes[group], limit=size)
    ranges = [FileRange(group[0], group[-1] + 1) for group in groups]
    return ranges if len(ranges) > 1 else None


def _find_document_ends(path: Path, document_end: re.Pattern[bytes], size: int, *, longest: int) -> Iterator[int]:
    """Yield document ends, each the first at least `size` bytes after the previous one, except the end of the file.

    Matches of `document_end` have at most `longest` bytes.
    """
    total, end = path.stat().st_size, 0
    while (next_end := _find_end_after(path, document_end, end + size, longest)) is not None and next_end < total:
        yield next_end
        end = next_end


def _find_end_after(path: Path, pattern: re.Pattern[bytes], offset: int, longest: int) -> int | None:
    """Return the end of the first match at or after a byte offset; None without a match."""
    kept = b""
    with path.open("rb") as stream:
        stream.seek(offset)
        while block := stream.read(_BLOCK_BYTES):
            data = kept + block
            if match := pattern.search(data):
                return offset + match.end()
            kept = data[-longest:]
            offset += len(data) - len(kept)
    return None
