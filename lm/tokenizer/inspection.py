"""Inspect a tokenizer: printable tokens, longest tokens, compression of a text."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from lm.errors import InputError
from lm.text.documents import read_pieces
from lm.text.text_files import ProgressCallback, TextFile, total_text_bytes
from lm.tokenizer.tokenizer import Tokenizer, split_into_pieces

_SHOWN = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍", "\x7f": "␡"}


@dataclass(frozen=True)
class CompressionStats:
    """How a tokenizer compresses a text."""

    bytes: int
    tokens: int
    words: int

    @property
    def bytes_per_token(self) -> float | None:
        """Return the mean bytes per token; None without tokens."""
        return self.bytes / self.tokens if self.tokens else None

    @property
    def tokens_per_word(self) -> float | None:
        """Return the mean tokens per word (fertility); None without words."""
        return self.tokens / self.words if self.words else None


def measure_compression(
    tokenizer: Tokenizer,
    files: Sequence[TextFile],
    separator: str,
    *,
    progress: ProgressCallback | None = None,
) -> CompressionStats:
    """Tokenize files in bounded memory, and count bytes, tokens and words.

    Args:
        separator: the line that ends a document.

    Raises:
        InputError: a file is not UTF-8 text, or has characters that the tokenizer does not know.
    """
    total = total_text_bytes(files)
    size = tokens = words = 0
    for file in files:
        last = " "
        for piece in split_into_pieces(read_pieces(file, separator), tokenizer):
            try:
                tokens += len(tokenizer.encode(piece.context + piece.text)) - piece.context_tokens
            except InputError as error:
                raise error.at(file.name) from None
            continues_word = not (piece.starts_document or last.isspace() or piece.text[0].isspace())
            words += len(piece.text.split()) - continues_word
            size += len(piece.text.encode())
            last = piece.text[-1]
            if progress:
                progress(size, total)
    return CompressionStats(size, tokens, words)


def find_longest_tokens(tokenizer: Tokenizer, number: int) -> list[int]:
    """Return the `number` tokens with most bytes, without special tokens."""
    special = set(tokenizer.special_tokens.values())
    sizes = {index: len(tokenizer.token_bytes(index)) for index in range(tokenizer.vocab_size) if index not in special}
    return sorted(sizes, key=lambda index: -sizes[index])[:number]


def format_token(data: bytes) -> str:
    r"""Return the text of a token with signs for invisible characters.

    A space is `·`, a line end `⏎`, a tab `⇥`; control characters are their pictures (`␀`); invisible characters and
    partial characters are escaped (`\u200d`, `\xed`); a combining mark is shown on `◌`.
    """
    text = data.decode(errors="backslashreplace")
    mark = "◌" if text and unicodedata.category(text[0]) in ("Mn", "Me") else ""
    return mark + "".join(map(_format_character, text))


def _format_character(character: str) -> str:
    if character in _SHOWN:
        return _SHOWN[character]
    if character < " ":
        return chr(0x2400 + ord(character))
    if unicodedata.category(character) in ("Cc", "Cf", "Cn", "Co", "Zl", "Zp", "Zs"):
        return f"\\u{ord(character):04x}"
    return character
