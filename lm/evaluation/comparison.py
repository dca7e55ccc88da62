"""Compare two models on the same text (`lm perplexity --versus`): the paired difference in bits per byte.

Tokenizers may differ: the text is cut at bytes where tokens end in both tokenizations. The segments between cuts are
the same text for both models (with one tokenizer, its tokens), so surprisals can be subtracted. Segments with an
unscored token are ignored. For translations see `translation_scores`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from lm.evaluation.perplexity import Totals
from lm.evaluation.scoring import Nats, Scored
from lm.tokenizer.offsets import ByteOffsets

BLOCK_BYTES = 256


@dataclass
class PairedDifference(Totals):
    """Totals over blocks of text scored by two models, and the statistics computed from them.

    A block is consecutive segments of at least `BLOCK_BYTES` bytes (a file's last may be shorter). With d the
    difference in bits, first minus second, and n the bytes of each of m blocks, the result is D / N, D = Σd and N = Σn:
    negative if the first model is better.

    Attributes:
        blocks: m.
        segments: number of segments.
        bytes: N.
        first: bits of the first model.
        second: bits of the second model.
        squares: Σd².
        products: Σdn.
        square_bytes: Σn².
    """

    blocks: int = 0
    segments: int = 0
    bytes: int = 0
    first: float = 0.0
    second: float = 0.0
    squares: float = 0.0
    products: float = 0.0
    square_bytes: int = 0

    @classmethod
    def of_block(cls, segments: int, size: int, first: float, second: float) -> PairedDifference:
        """Return the totals of a block of `size` bytes."""
        difference = first - second
        return cls(1, segments, size, first, second, difference**2, difference * size, size**2)

    @property
    def first_bits_per_byte(self) -> float | None:
        return self.first / self.bytes if self.bytes else None

    @property
    def second_bits_per_byte(self) -> float | None:
        return self.second / self.bytes if self.bytes else None

    @property
    def difference(self) -> float | None:
        """Return the difference in bits per byte, first minus second; None without text."""
        return (self.first - self.second) / self.bytes if self.bytes else None

    @property
    def standard_error(self) -> float | None:
        """Return the standard error of r = D / N by the delta method: √(m / (m - 1) · Σ(d - r·n)²) / N.

        Blocks, not tokens, are treated as independent, because differences between models are correlated over
        neighbouring tokens. None below two blocks.
        """
        if self.difference is None or self.blocks < 2:
            return None
        ratio = self.difference
        residuals = self.squares - 2 * ratio * self.products + ratio**2 * self.square_bytes
        return math.sqrt(self.blocks / (self.blocks - 1) * max(0.0, residuals)) / self.bytes

    @property
    def z(self) -> float | None:
        """Return the difference in standard errors; None if undefined or the error is zero."""
        return self.difference / self.standard_error if self.difference is not None and self.standard_error else None


def compare_models(
    first: Iterable[Scored], second: Iterable[Scored], *, files: int, block_bytes: int = BLOCK_BYTES
) -> list[PairedDifference]:
    """Compare two models on each file.

    Args:
        first: the files, scored by the first model.
        second: the same files, scored by the second model.
        block_bytes: minimum size of independent blocks.
    """
    differences = []
    for (ends, nats), (other_ends, other_nats) in zip(_by_file(first, files), _by_file(second, files), strict=True):
        cuts, blocks = np.intersect1d(ends, other_ends), []
        one, two = (
            np.bincount(np.searchsorted(cuts, places), weights=values, minlength=len(cuts)).tolist()
            for places, values in ((ends, nats), (other_ends, other_nats))
        )
        segments, size, bits, other_bits = 0, 0, 0.0, 0.0
        for length, a, b in zip(np.diff(cuts, prepend=0).tolist(), one, two, strict=True):
            if not math.isnan(a + b):
                segments, size = segments + 1, size + length
                bits, other_bits = bits + a / math.log(2), other_bits + b / math.log(2)
            if size >= block_bytes:
                blocks.append(PairedDifference.of_block(segments, size, bits, other_bits))
                segments, size, bits, other_bits = 0, 0, 0.0, 0.0
        if segments:
            blocks.append(PairedDifference.of_block(segments, size, bits, other_bits))
        differences.append(PairedDifference.total(blocks))
    return differences


def _by_file(scored: Iterable[Scored], files: int) -> list[tuple[ByteOffsets, Nats]]:
    """Return the ends of all tokens of each file, in bytes of its text, and their nats."""
    ends: list[list[ByteOffsets]] = [[np.zeros(0, dtype=np.int64)] for _ in range(files)]
    nats: list[list[Nats]] = [[np.zeros(0)] for _ in range(files)]
    size = [0] * files  # of the pieces up to this one
    for some in scored:
        file = some.piece.file
        size[file] += len(some.piece.data) * (some.first == 0)
        ends[file].append(size[file] - len(some.piece.data) + some.ends)
        nats[file].append(some.nats)
    return [(np.concatenate(places), np.concatenate(values)) for places, values in zip(ends, nats, strict=True)]
