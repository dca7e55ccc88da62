"""Perplexity: totals over scored tokens, and the metrics computed from them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np

from lm.evaluation.scoring import Scored


class Totals:
    """A dataclass whose fields are totals, starting at zero."""

    @classmethod
    def total(cls, parts: Iterable[Self]) -> Self:
        """Add up several parts, such as files."""
        total = cls()
        for part in parts:
            for name, value in vars(part).items():
                setattr(total, name, getattr(total, name) + value)
        return total


@dataclass
class PerplexityResult(Totals):
    """Totals over scored text, and the metrics computed from them.

    The metrics of several files are those of their summed totals (micro-average): each token has the same weight.

    Attributes:
        unscored: first tokens of documents, if there is no start token to predict them from, and skipped tokens, if
            only every Nth is scored.
        documents: documents, examples, conversations or sentence pairs.
        words: whitespace-separated words of their text.
        bytes: UTF-8 bytes of the scored tokens.
        nats: surprisal of the scored tokens.
        squares: sum of squared surprisals.
        unknown_tokens: tokens for text that the vocabulary cannot represent.
        lost_bytes: bytes that encoding and decoding loses. They have no surprisal, so results per word and per byte are
            not comparable with those of another tokenizer.
        shortened: examples and conversations that were truncated to fit the context.
        blank: pairs with a blank side, and conversations without a reply in the context, which are left out.
    """

    tokens: int = 0
    unscored: int = 0
    documents: int = 0
    words: int = 0
    bytes: int = 0
    nats: float = 0.0
    squares: float = 0.0
    unknown_tokens: int = 0
    lost_bytes: int = 0
    shortened: int = 0
    blank: int = 0

    def __repr__(self) -> str:
        if not self.tokens:
            return "<PerplexityResult of no tokens>"
        bits = "" if self.bits_per_byte is None else f", {self.bits_per_byte:.4f} bits/byte"
        perplexity = "beyond the greatest float" if self.perplexity is None else f"{self.perplexity:.4g}"
        return f"<PerplexityResult: perplexity {perplexity}{bits}, {self.tokens:,} tokens, {self.bytes:,} bytes>"

    @property
    def loses_text(self) -> bool:
        """Return whether the tokenizer loses some of the text."""
        return bool(self.unknown_tokens or self.lost_bytes)

    def add(self, scored: Scored) -> None:
        """Count scored tokens and, with the first of a piece, the piece's text."""
        piece, is_scored = scored.piece, ~np.isnan(scored.nats)
        nats = scored.nats[is_scored]
        self.tokens += len(nats)
        self.nats += float(nats.sum())
        self.squares += float(np.square(nats).sum())
        if scored.first == 0:
            self.documents += piece.starts_document
            self.shortened += piece.is_shortened and (piece.starts_document or not piece.text)
            self.blank += not piece.text
            self.words += piece.words
            self.bytes += len(piece.data)
            self.unknown_tokens += piece.loss.unknown
            self.lost_bytes += piece.loss.bytes
        if not is_scored.all():
            self.unscored += int((~is_scored).sum())
            self.bytes -= int(np.diff(scored.ends, prepend=scored.start)[~is_scored].sum())

    @property
    def perplexity(self) -> float | None:
        """Return exp(nats / tokens); None without tokens."""
        return _exp_ratio(self.nats, self.tokens)

    @property
    def word_perplexity(self) -> float | None:
        """Return exp(nats / words), comparable across tokenizers; None without words, or on overflow.

        Also None if tokens other than first ones are unscored, since words cannot be counted in parts.
        """
        return _exp_ratio(self.nats, self.words) if self.tokens and self.unscored <= self.documents else None

    @property
    def nats_per_token(self) -> float | None:
        return self.nats / self.tokens if self.tokens else None

    @property
    def bits_per_byte(self) -> float | None:
        """Return bits of surprisal per UTF-8 byte, comparable across tokenizers; None without bytes."""
        return self.nats / math.log(2) / self.bytes if self.bytes else None

    @property
    def standard_error(self) -> float | None:
        """Return the standard error of the mean nats per token, s / √tokens; None below two tokens.

        It assumes independent tokens, so it is too small for running text; perplexity · standard_error approximates the
        standard error of the perplexity.
        """
        if self.tokens < 2:
            return None
        variance = (self.squares - self.nats**2 / self.tokens) / (self.tokens - 1)
        return math.sqrt(max(0.0, variance) / self.tokens)

    @property
    def bits_per_byte_error(self) -> float | None:
        """Return the standard error of bits per byte; None below two tokens, or without bytes."""
        error = self.standard_error
        return error * self.tokens / math.log(2) / self.bytes if error is not None and self.bytes else None


def _exp_ratio(nats: float, count: int) -> float | None:
    try:
        return math.exp(nats / count) if count else None
    except OverflowError:
        return None
