"""Sums over scored tokens: perplexity, the difference of two models, and surprisal by token, word and character."""

from __future__ import annotations

import itertools
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm.evaluation.scoring import Nats, Scored
from lm.tokenizer.offsets import ByteOffsets, assign_word_indices

Blocks = NDArray[np.float64]
"""(blocks, 4) segments, bytes, bits of the first and of the second model of blocks of text; see `PairedDifference`."""

BLOCK_BYTES = 256
_JOINERS = "\u200c\u200d"


@dataclass
class PerplexityResult:
    """Totals over scored text, and the metrics computed from them.

    The metrics of several files are those of their summed totals (micro-average): each token has the same weight.

    Attributes:
        unscored: first tokens of documents, if there is no start token to predict them from.
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

    @classmethod
    def total(cls, parts: Iterable[PerplexityResult]) -> PerplexityResult:
        """Add up several results, such as those of files."""
        return cls(*map(sum, zip(astuple(cls()), *map(astuple, parts), strict=True)))

    def add(self, scored: Scored) -> None:
        """Count scored text."""
        nats, text_bytes = scored.nats[scored.unscored :], len(scored.text.encode())
        self.tokens += len(nats)
        self.unscored += scored.unscored
        self.documents += scored.starts
        self.words += scored.words
        self.bytes += text_bytes - (int(scored.ends[0]) if scored.unscored else 0)
        self.nats += float(nats.sum())
        self.squares += float(np.square(nats).sum())
        self.unknown_tokens += scored.loss.unknown
        self.lost_bytes += scored.loss.bytes
        self.shortened += scored.is_shortened and (scored.starts or not scored.text)
        self.blank += not scored.text

    @property
    def loses_text(self) -> bool:
        """Return whether the tokenizer loses some of the text."""
        return bool(self.unknown_tokens or self.lost_bytes)

    @property
    def perplexity(self) -> float | None:
        """Return exp(nats / tokens); None without tokens."""
        return _exp_ratio(self.nats, self.tokens)

    @property
    def word_perplexity(self) -> float | None:
        """Return exp(nats / words), comparable across tokenizers; None without words, or on overflow."""
        return _exp_ratio(self.nats, self.words)

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


@dataclass(frozen=True)
class PairedDifference:
    """The difference of two models in bits per byte, first minus second: negative if the first is better.

    Tokenizers may differ: the text is cut at bytes where tokens end in both tokenizations. The segments between cuts
    are the same text for both models (with one tokenizer, its tokens), so surprisals can be subtracted. Segments with
    an unscored token are ignored. A block is consecutive segments of at least 256 bytes (a file's last may be shorter).

    Attributes:
        difference: r = D / N, where d is the difference in bits of a block and n its bytes, D = Σd and N = Σn.
        standard_error: by the delta method √(m / (m - 1) · Σ(d - r·n)²) / N for m blocks; None below two. Blocks, not
            tokens, are independent, because differences of models are correlated over neighbouring tokens.
        z: the difference in standard errors.
    """

    bytes: int
    segments: int
    blocks: int
    first_bits_per_byte: float | None = None
    second_bits_per_byte: float | None = None
    difference: float | None = None
    standard_error: float | None = None
    z: float | None = None

    @classmethod
    def of_blocks(cls, blocks: Blocks) -> PairedDifference:
        segments, size, first, second = blocks.sum(axis=0).tolist()
        counts, number = (int(size), int(segments), len(blocks)), len(blocks)
        if not number:
            return cls(*counts)
        ratio, error = (first - second) / size, None
        if number > 1:
            residuals = blocks[:, 2] - blocks[:, 3] - ratio * blocks[:, 1]
            error = math.sqrt(number / (number - 1) * float(np.square(residuals).sum())) / size
        return cls(*counts, first / size, second / size, ratio, error, ratio / error if error else None)


def compare_models(
    first: Iterable[Scored], second: Iterable[Scored], *, files: int, block_bytes: int = BLOCK_BYTES
) -> list[Blocks]:
    """Return the blocks of each of several files, scored by two models."""
    by_file = []
    for sides in zip(_by_file(first, files), _by_file(second, files), strict=True):
        cuts, blocks, block = np.intersect1d(sides[0][0], sides[1][0]), [], np.zeros(4)
        one, two = (
            np.bincount(np.searchsorted(cuts, ends), weights=nats, minlength=len(cuts)) / math.log(2)
            for ends, nats in sides
        )
        for length, *bits in zip(np.diff(cuts, prepend=0), one, two, strict=True):
            if not np.isnan(bits).any():
                block += (1, length, *bits)
            if block[1] >= block_bytes:
                blocks.append(block)
                block = np.zeros(4)
        by_file.append(np.array([*blocks, *([block] if block[0] else [])]).reshape(-1, 4))
    return by_file


def _by_file(scored: Iterable[Scored], files: int) -> list[tuple[ByteOffsets, Nats]]:
    """Return the ends of all tokens of each file, in bytes of its text, and their nats."""
    ends: list[list[ByteOffsets]] = [[np.zeros(0, dtype=np.int64)] for _ in range(files)]
    nats: list[list[Nats]] = [[np.zeros(0)] for _ in range(files)]
    size = [0] * files  # of the texts before
    for some in scored:
        ends[some.file].append(size[some.file] + some.ends)
        nats[some.file].append(some.nats)
        size[some.file] += len(some.text.encode())
    return [(np.concatenate(places), np.concatenate(values)) for places, values in zip(ends, nats, strict=True)]


def iterate_tokens(scored: Iterable[Scored], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield each token in reading order: its place and surprisal.

    `offset` and `bytes` are its text's in the document; `bytes` is 0 if an earlier token has all of their character,
    and `text` has replacement characters for parts of one. `nats` is None for an unscored token.
    """
    offset = index = 0
    for some in scored:
        if some.starts:
            offset = index = 0
        data, start = some.text.encode(), 0
        for token, end, nats in zip(some.tokens.tolist(), some.ends.tolist(), some.nats.tolist(), strict=True):
            yield {
                "file": names[some.file],
                "document": some.document,
                "index": index,
                "offset": offset + start,
                "bytes": end - start,
                "token": token,
                "text": data[start:end].decode(errors="replace"),
                "nats": None if math.isnan(nats) else nats,
            }
            start, index = end, index + 1
        offset += len(data)


def iterate_words(scored: Iterable[Scored], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield each whitespace-separated word in reading order: its place and surprisal.

    The surprisal of a word is that of its tokens; see `assign_word_indices`. A word without a token of its own is part
    of the one before. `bits` is None if one of the tokens is unscored.
    """
    offset = index = 0
    for some in scored:
        if some.starts:
            offset = index = 0
        words = [match.span() for match in re.finditer(r"\S+", some.text)] or [(0, 0)]
        numbers = np.array(assign_word_indices(some.text, some.ends.tolist()), dtype=np.int64)
        firsts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()  # tokens
        for first, stop in itertools.pairwise([*firsts, len(numbers)]):
            following = numbers[stop] if stop < len(numbers) else len(words)
            begin, end = words[numbers[first]][0], words[following - 1][1]
            bits = float(some.nats[first:stop].sum()) / math.log(2)
            yield {
                "file": names[some.file],
                "document": some.document,
                "index": index,
                "offset": offset + len(some.text[:begin].encode()),
                "bytes": len(some.text[begin:end].encode()),
                "tokens": stop - first,
                "text": some.text[begin:end],
                "bits": None if math.isnan(bits) else bits,
            }
            index += 1
        offset += len(some.text.encode())


@dataclass(frozen=True)
class TextSpan:
    """Text of one or more tokens, with the sum of their surprisals in bits; NaN if one is not scored."""

    file: int
    document: int
    text: str
    tokens: int
    bits: float


def merge_into_spans(scored: Iterable[Scored]) -> Iterator[TextSpan]:
    """Merge tokens, adding their surprisals, until no character is split, nor what is drawn as one."""
    for some in scored:
        data, ends, begin, first = some.text.encode(), some.ends.tolist(), 0, 0
        for number, (end, following) in enumerate(zip(ends, [*ends[1:], None], strict=True), 1):
            if following is not None and (end in (begin, following) or not _is_boundary(data, end)):
                continue
            bits = float(some.nats[first:number].sum()) / math.log(2)
            yield TextSpan(some.file, some.document, data[begin:end].decode(), number - first, bits)
            begin, first = end, number


def _is_boundary(data: bytes, place: int) -> bool:
    """Return whether a text is cut between graphemes, such as emoji, flags, Hangul syllables, and CRLF.

    Source: Unicode Standard Annex 29, extended grapheme clusters, simplified.
    """
    if data[place] & 0xC0 == 0x80:  # a continuation byte
        return False
    last = data[max(0, place - 4) : place].decode(errors="ignore")[-1]
    first = data[place : place + 4].decode(errors="ignore")[0]
    is_flag = min(last, first) >= "\U0001f1e6" and max(last, first) <= "\U0001f1ff"
    is_modifier = "\U0001f3fb" <= first <= "\U0001f3ff" or "\U000e0020" <= first <= "\U000e007f"  # skin tones, tags
    is_part = is_flag or is_modifier or "\u1160" <= first <= "\u11ff" or unicodedata.category(first)[0] == "M"
    return not (is_part or first in _JOINERS or last == _JOINERS[1] or last + first == "\r\n")
