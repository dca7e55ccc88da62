"""Inspect a tokenizer: printable tokens, and compression of a text."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from lm.errors import InputError
from lm.text.find import ProgressCallback, total_text_bytes
from lm.text.text_file import TextFile
from lm.tokenizer.tokenizer import Tokenizer, encode_pieces, split_into_pieces


@dataclass(frozen=True)
class CompressionStats:
    """How a tokenizer compresses a text."""

    bytes: int
    tokens: int
    words: int

    def ratios(self) -> dict[str, float | None]:
        """Return bytes per token and tokens per word (fertility); None without tokens or words."""
        return {
            "bytes_per_token": self.bytes / self.tokens if self.tokens else None,
            "tokens_per_word": self.tokens / self.words if self.words else None,
        }

    def to_dict(self) -> dict[str, float | None]:
        return {**dataclasses.asdict(self), **self.ratios()}


def measure_compression(
    tokenizer: Tokenizer,
    files: Sequence[TextFile],
    *,
    progress: ProgressCallback | None = None,
) -> CompressionStats:
    """Tokenize files in bounded memory, and count bytes, tokens and words.

    Raises:
        InputError: a file is not UTF-8 text, or has characters that the tokenizer does not know.
    """
    total = total_text_bytes(files)
    size = tokens = words = 0
    for file in files:
        last = " "
        for piece in split_into_pieces(file.records(), tokenizer):
            try:
                tokens += len(encode_pieces([piece], tokenizer)[0])
            except InputError as error:
                raise error.at(file.name) from None
            continues_word = not (piece.starts or last.isspace() or piece.text[0].isspace())
            words += len(piece.text.split()) - continues_word
            size += len(piece.text.encode())
            last = piece.text[-1]
            if progress:
                progress(size, total)
    return CompressionStats(size, tokens, words)


def format_token(data: bytes) -> str:
    r"""Return the text of a token with signs for invisible characters.

    A space is `·`, a line end `⏎`, a tab `⇥`; other invisible and partial characters are escaped (`\u200d`, `\xed`).
    """
    text = data.decode(errors="backslashreplace").translate({32: "·", 10: "⏎", 9: "⇥"})
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )
