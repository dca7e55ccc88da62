"""Compare two models on the same text (`lm perplexity --versus`): the paired difference in bits per byte.

Tokenizers may differ: the text is cut at bytes where tokens end in both tokenizations. The segments between cuts are
the same text for both models (with one tokenizer, its tokens), so surprisals can be subtracted. Segments with an
unscored token are ignored. For translations see `translation_scores`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from lm.evaluation.batch_scoring import Nats
from lm.evaluation.file_scoring import ScoredSegment
from lm.evaluation.perplexity import Totals
from lm.tokenizer.offsets import ByteOffsets

BLOCK_BYTES = 256


@dataclass(frozen=True)
class AlignedSegments:
    """Consecutive segments of text, the same for both models.

    Attributes:
        files: (segments,) file indices.
        bytes: (segments,) lengths.
        first: (segments,) nats of the first model; NaN if a token is not scored.
        second: (segments,) nats of the second model, likewise.
    """

    files: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]
    first: Nats
    second: Nats


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

    def add(self, *, segments: int, size: int, first: float, second: float) -> None:
        """Count a block of `size` bytes."""
        difference = first - second
        self.blocks += 1
        self.segments += segments
        self.bytes += size
        self.first += first
        self.second += second
        self.squares += difference**2
        self.products += difference * size
        self.square_bytes += size**2

    @property
    def bits_per_byte(self) -> tuple[float, float] | None:
        """Return bits per byte of the first and the second model; None without text."""
        return (self.first / self.bytes, self.second / self.bytes) if self.bytes else None

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
    first: Iterable[ScoredSegment], second: Iterable[ScoredSegment], *, files: int, block_bytes: int = BLOCK_BYTES
) -> list[PairedDifference]:
    """Compare two models on each file, in bounded memory.

    Args:
        first: the files, scored by the first model.
        second: the same files, scored by the second model.
        block_bytes: minimum size of independent blocks.
    """
    gatherers = [_BlockAccumulator(block_bytes) for _ in range(files)]
    for segments in align_segments(first, second):
        for row in zip(segments.files, segments.bytes, segments.first, segments.second, strict=True):
            gatherers[row[0]].add(int(row[1]), float(row[2]), float(row[3]))
    return [gatherer.finish() for gatherer in gatherers]


class _BlockAccumulator:
    """Groups the segments of a file into blocks."""

    def __init__(self, min_bytes: int) -> None:
        self._least, self._sums = min_bytes, PairedDifference()
        self._begin()

    def _begin(self) -> None:
        self._segments, self._bytes, self._first, self._second = 0, 0, 0.0, 0.0

    def add(self, size: int, first: float, second: float) -> None:
        """Count a segment, in nats, unless a token of it is not scored."""
        if math.isnan(first + second):
            return
        self._segments, self._bytes = self._segments + 1, self._bytes + size
        self._first, self._second = self._first + first / math.log(2), self._second + second / math.log(2)
        if self._bytes >= self._least:
            self._close()

    def _close(self) -> None:
        self._sums.add(segments=self._segments, size=self._bytes, first=self._first, second=self._second)
        self._begin()

    def finish(self) -> PairedDifference:
        """Return the totals, with the rest as a last block."""
        if self._segments:
            self._close()
        return self._sums


def align_segments(first: Iterable[ScoredSegment], second: Iterable[ScoredSegment]) -> Iterator[AlignedSegments]:
    """Cut the text where tokens end in both tokenizations; buffers about a batch of the other model."""
    sides = (_PendingTokens(first), _PendingTokens(second))
    start = 0
    while not all(side.exhausted for side in sides):
        behind = min((side for side in sides if not side.exhausted), key=lambda side: side.reach)
        behind.read()
        common = np.intersect1d(sides[0].ends, sides[1].ends)
        if not all(side.exhausted for side in sides):  # more tokens may end where the last one did
            common = common[common < min(side.reach for side in sides)]
        if len(common):
            files = sides[0].files[np.searchsorted(sides[0].ends, common)]
            yield AlignedSegments(files, np.diff(common, prepend=start), sides[0].take(common), sides[1].take(common))
            start = int(common[-1])


@dataclass
class _PendingTokens:
    """One model's tokens that are not aligned yet.

    Attributes:
        source: yields more tokens.
        exhausted: whether there are no more.
        reach: end of the last token read, in bytes of the text of all files.
        ends: (tokens,) byte offsets.
        files: (tokens,) file indices.
        nats: (tokens,) surprisals.
    """

    source: Iterable[ScoredSegment]
    exhausted: bool = False
    reach: int = 0
    ends: ByteOffsets = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    files: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    nats: Nats = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        self._source = iter(self.source)
        self._read = 0  # bytes of the pieces before the last one

    def read(self) -> None:
        """Read one more segment."""
        segment = next(self._source, None)
        if segment is None:
            self.exhausted = True
            return
        piece, ends = segment.piece, self._read + segment.ends
        self.ends = np.concatenate((self.ends, ends))
        self.files = np.concatenate((self.files, np.full(len(ends), piece.file)))
        self.nats = np.concatenate((self.nats, segment.nats))
        if segment.first + len(ends) == len(piece.tokens):
            self._read += len(piece.data)
        self.reach = int(ends[-1]) if len(ends) else self._read

    def take(self, cuts: ByteOffsets) -> Nats:
        """Remove the tokens up to the last cut; returns the nats between cuts."""
        count = int(np.searchsorted(self.ends, cuts[-1], side="right"))
        sums = np.bincount(np.searchsorted(cuts, self.ends[:count]), weights=self.nats[:count], minlength=len(cuts))
        self.ends, self.files, self.nats = self.ends[count:], self.files[count:], self.nats[count:]
        return sums.astype(np.float64)
