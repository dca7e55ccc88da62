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

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lm.text import text_files
from lm.text.text_files import BlockCallback, TextFile


@dataclass(frozen=True)
class TextPiece:
    """A non-empty part of a document, of bounded size.

    Attributes:
        starts_document: whether it is the first piece of its document.
        context: preceding text, to be tokenized with it.
        context_tokens: how many first tokens belong to the context, to be dropped.
        ends_document: whether it is the last piece of its document, as far as that is known.
    """

    text: str
    starts_document: bool
    context: str = ""
    context_tokens: int = 0
    ends_document: bool = True


def read_pieces(
    file: TextFile,
    separator: str,
    *,
    on_block: BlockCallback | None = None,
) -> Iterator[TextPiece]:
    """Yield the documents of a file in pieces of at most a few hundred kilobytes, cut anywhere.

    Args:
        separator: the line that ends a document, for files without rows.
        on_block: called with each decompressed block of bytes as it is read.

    Raises:
        InputError: the file is not text in its encoding, or is damaged.
    """
    if file.supervised or file.holds_rows:
        for text in _read_row_documents(file, on_block):
            for start in range(0, len(text), text_files.BLOCK_BYTES):
                yield TextPiece(text[start : start + text_files.BLOCK_BYTES], starts_document=start == 0)
        return
    starts = True
    for part in _split_at_separators(file.text(on_block), separator):
        if part is None:
            starts = True
        elif part:
            yield TextPiece(part, starts)
            starts = False


def _read_row_documents(file: TextFile, on_block: BlockCallback | None) -> Iterator[str]:
    if file.supervised and not file.holds_conversations:
        return (example.prompt + example.completion for example in file.examples(on_block))
    return file.documents(on_block)


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
