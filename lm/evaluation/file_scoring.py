"""Score the tokens of files of any size in reading order, in bounded memory, with their text."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from lm.data.bucketing import length_batches
from lm.errors import InputError, nan_logits_error
from lm.evaluation.batch_scoring import Nats
from lm.evaluation.scoring_windows import Ids
from lm.processes import ParallelMap
from lm.text.documents import TextPiece, read_pieces
from lm.text.text_files import TextFile
from lm.tokenizer.offsets import ByteOffsets, RoundTripLoss, TokenOffsets
from lm.tokenizer.tokenizer import Tokenizer, split_into_pieces

_MIN_FILL = 0.9
"""Minimum fraction of non-padding positions for batches in reading order."""
_PREFETCHED_BATCHES = 16
"""Batches of windows sorted by length together otherwise."""


class HasTokens(Protocol):
    """A window of any kind."""

    @property
    def tokens(self) -> Ids: ...


W = TypeVar("W", bound=HasTokens)
T = TypeVar("T")


class WindowBatcher(Generic[W]):
    """Batches windows in reading order or, if that needs much padding, by length within a buffer."""

    def __init__(self, windows: Iterable[W], size: int) -> None:
        self._windows, self._size = iter(windows), size
        self._packs: deque[list[NDArray[np.int64]]] = deque()  # for each pack, the numbers of the windows in each batch

    def batches(self) -> Iterator[list[W]]:
        while pack := list(islice(self._windows, self._size)):
            lengths = [len(window.tokens) for window in pack]
            parts = [np.arange(len(pack))]
            if sum(lengths) < _MIN_FILL * len(pack) * max(lengths):
                pack += islice(self._windows, (_PREFETCHED_BATCHES - 1) * self._size)
                parts = length_batches([len(window.tokens) for window in pack], rows=self._size)
            self._packs.append(parts)
            yield from ([pack[index] for index in part] for part in parts)

    def restore_order(self, scored: Iterable[Sequence[T]]) -> Iterator[list[T]]:
        """Yield the results of batches in reading order, as soon as a buffer is complete."""
        pending: dict[int, T] = {}
        done = 0
        for batch in scored:
            pending |= zip(self._packs[0][done].tolist(), batch, strict=True)
            done += 1
            if done == len(self._packs[0]):
                self._packs.popleft()
                yield [pending[index] for index in range(len(pending))]
                pending, done = {}, 0


W_co = TypeVar("W_co", covariant=True, bound=HasTokens)


@dataclass(frozen=True)
class EncodedPiece:
    """Part of a document, as text and tokens.

    Attributes:
        file: file index.
        document: document index in the file.
        first: tokens of the document before this piece.
        offset: bytes of the document before it.
        words: whitespace-separated words that begin in it.
    """

    file: int
    document: int
    first: int
    offset: int
    text_piece: TextPiece
    tokens: Ids
    words: int
    offsets: TokenOffsets = field(repr=False, compare=False)

    @cached_property
    def data(self) -> bytes:
        return self.text_piece.text.encode()

    @cached_property
    def ends(self) -> ByteOffsets:
        """Return (tokens,) byte offsets in `data` where each token ends."""
        return self.offsets.ends(self.text_piece, self.tokens)

    @cached_property
    def round_trip_loss(self) -> RoundTripLoss:
        """Return what encoding loses of the text."""
        return self.offsets.round_trip_loss(self.text_piece, self.tokens)


@dataclass(frozen=True)
class ScoredSegment:
    """Consecutive scored tokens of a piece; an empty piece has one empty segment.

    Attributes:
        first: tokens of the piece before them.
        nats: (tokens,) surprisals; NaN for a token that is not scored.
    """

    piece: EncodedPiece
    first: int
    nats: Nats

    @property
    def tokens(self) -> Ids:
        return self.piece.tokens[self.first : self.first + len(self.nats)]

    @property
    def start(self) -> int:
        """Return the byte offset in the piece where the first token begins."""
        return int(self.piece.ends[self.first - 1]) if self.first else 0

    @property
    def ends(self) -> ByteOffsets:
        """Return (tokens,) byte offsets in the piece where each token ends."""
        return self.piece.ends[self.first : self.first + len(self.nats)]


class WindowScorer(Protocol[W]):
    """Splits documents into windows and scores these with a model."""

    def make_splitter(self) -> WindowSplitter[W]: ...

    def score(self, windows: Sequence[W]) -> list[Nats]:
        """Return the surprisals of the tokens that each window accounts for; NaN for those not scored."""
        ...

    def unscored(self, segment: ScoredSegment) -> int:
        """Return how many tokens of a segment are not to be scored."""
        ...


class WindowSplitter(Protocol[W_co]):
    """Splits one document, given in parts, into windows."""

    def push(self, tokens: Ids) -> Iterator[W_co]:
        """Yield the windows that are complete with these tokens."""
        ...

    def finish(self) -> Iterator[W_co]:
        """Yield the last window, if tokens are left."""
        ...


def score_files(
    window_scorer: WindowScorer[W],
    tokenizer: Tokenizer,
    files: Sequence[TextFile],
    *,
    separator: str,
    batch_size: int,
    parallel_map: ParallelMap[list[W], list[Nats]] | None = None,
) -> Iterator[list[ScoredSegment]]:
    """Score files in bounded memory, each document on its own.

    Args:
        separator: the line that ends a document.
        batch_size: windows scored together, across files.
        parallel_map: scores batches in other processes, each with such a window scorer.

    Yields:
        The segments of each batch, in reading order: every token once, and every piece at least once.

    Raises:
        InputError: a file is not text that the tokenizer can encode, or the model outputs NaN.
    """
    reader = _FileWindows(tokenizer, separator, window_scorer.make_splitter)
    windows = (window for number, file in enumerate(files) for window in reader.read(number, file))
    packing = WindowBatcher(windows, batch_size)
    batches = packing.batches()
    for scored in packing.restore_order(
        map(window_scorer.score, batches) if parallel_map is None else parallel_map(batches)
    ):
        taken = list(reader.take(np.concatenate(scored)))
        for segment in taken:
            if np.isinf(segment.nats).any() or np.isnan(segment.nats).sum() > window_scorer.unscored(segment):
                raise nan_logits_error(files[segment.piece.file].name)
        yield taken
    if rest := list(reader.take(np.zeros(0))):
        yield rest


class _FileWindows(Generic[W]):
    """Splits files into windows, and maps scores back to segments of the text."""

    def __init__(self, tokenizer: Tokenizer, separator: str, splitter: Callable[[], WindowSplitter[W]]) -> None:
        self._tokenizer, self._separator, self._cutter = tokenizer, separator, splitter
        self._offsets = TokenOffsets(tokenizer)
        self._waiting: deque[EncodedPiece] = deque()  # read, and not scored to the end
        self._taken = 0  # tokens of the first of them that are

    def read(self, number: int, file: TextFile) -> Iterator[W]:
        """Yield the windows of a file; its pieces are buffered until all their tokens are scored."""
        splitter, document, first, offset, last = self._cutter(), -1, 0, 0, " "
        for piece in split_into_pieces(read_pieces(file, self._separator), self._tokenizer):
            if piece.starts_document:
                yield from splitter.finish()
                splitter, document, first, offset, last = self._cutter(), document + 1, 0, 0, " "
            tokens = self._encode(piece, file)
            words = len(piece.text.split()) - (not (last.isspace() or piece.text[0].isspace()))
            self._waiting.append(EncodedPiece(number, document, first, offset, piece, tokens, words, self._offsets))
            first, offset, last = first + len(tokens), offset + len(piece.text.encode()), piece.text[-1]
            yield from splitter.push(tokens)
        yield from splitter.finish()

    def take(self, nats: Nats) -> Iterator[ScoredSegment]:
        """Yield the next tokens as segments with these surprisals, and empty pieces among them."""
        while self._waiting:
            piece = self._waiting[0]
            count = min(len(piece.tokens) - self._taken, len(nats))
            if count == 0 and len(piece.tokens):
                return
            yield ScoredSegment(piece, self._taken, nats[:count])
            nats, self._taken = nats[count:], self._taken + count
            if self._taken == len(piece.tokens):
                self._waiting.popleft()
                self._taken = 0

    def _encode(self, piece: TextPiece, file: TextFile) -> Ids:
        try:
            return self._tokenizer.encode_batch([piece.context + piece.text])[0][piece.context_tokens :]
        except InputError as error:
            raise error.at(file.name) from None
