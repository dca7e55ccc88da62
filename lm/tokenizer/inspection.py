"""Inspecting a tokenizer: what its tokens stand for, and how well it compresses a text."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from lm.errors import InputError
from lm.text.documents import read_fragments
from lm.text.files import ProgressCallback, TextFile, total_text_bytes
from lm.tokenizer.tokenizer import Tokenizer, split_into_pieces

_SHOWN = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍", "\x7f": "␡"}


@dataclass(frozen=True)
class CompressionStats:
    """How a tokenizer divides a text.

    Attributes:
        bytes: UTF-8 bytes of the text.
        tokens: the number of its tokens.
        words: the number of its words, separated by white space.
    """

    bytes: int
    tokens: int
    words: int

    @property
    def bytes_per_token(self) -> float | None:
        """How many bytes a token stands for on average; None without tokens."""
        return self.bytes / self.tokens if self.tokens else None

    @property
    def tokens_per_word(self) -> float | None:
        """How many tokens a word becomes on average; None without words."""
        return self.tokens / self.words if self.words else None


def measure_compression(
    tokenizer: Tokenizer,
    files: Sequence[TextFile],
    separator: str,
    *,
    progress: ProgressCallback | None = None,
) -> CompressionStats:
    """Tokenize files of any size in bounded memory, and count bytes, tokens and words.

    Args:
        tokenizer: what makes the tokens.
        files: the text files.
        separator: the line that ends a document within a file.
        progress: called as text is tokenized.

    Raises:
        InputError: a file is not UTF-8 text, or has characters that the tokenizer does not know.
    """
    total = total_text_bytes(files)
    size = tokens = words = 0
    for file in files:
        last = " "
        for piece in split_into_pieces(read_fragments(file, separator), tokenizer):
            try:
                tokens += len(tokenizer.encode(piece.context + piece.text)) - piece.context_tokens
            except InputError as error:
                raise error.at(file.name) from None
            goes_on = not (piece.starts_document or last.isspace() or piece.text[0].isspace())
            words += len(piece.text.split()) - goes_on
            size += len(piece.text.encode())
            last = piece.text[-1]
            if progress:
                progress(size, total)
    return CompressionStats(size, tokens, words)


def find_longest_tokens(tokenizer: Tokenizer, number: int) -> list[int]:
    """The `number` tokens that stand for most bytes, special ones left out; of equals the first."""
    special = set(tokenizer.special_tokens.values())
    sizes = {index: len(tokenizer.token_bytes(index)) for index in range(tokenizer.vocab_size) if index not in special}
    return sorted(sizes, key=lambda index: -sizes[index])[:number]


def format_token(data: bytes) -> str:
    r"""The text of a token, with signs for what cannot be seen.

    A space is `·`, a line end `⏎`, a tab `⇥`; control characters are their pictures (`␀`); invisible characters and
    bytes that are part of a character are escaped (`\u200d`, `\xed`); a mark on the token before stands on `◌`.
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
