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
from lm.errors import InputError
from lm.evaluation.batch_scoring import Nats
from lm.evaluation.scoring_windows import Ids
from lm.text.records import Record
from lm.text.text_file import TextFile
from lm.tokenizer.offsets import ByteOffsets, RoundTripLoss, TokenOffsets
from lm.tokenizer.tokenizer import Tokenizer, encode_pieces, split_into_pieces

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
    record: Record
    tokens: Ids
    words: int
    offsets: TokenOffsets = field(repr=False, compare=False)

    @cached_property
    def data(self) -> bytes:
        return self.record.text.encode()

    @cached_property
    def ends(self) -> ByteOffsets:
        """Return (tokens,) byte offsets in `data` where each token ends."""
        return self.offsets.ends(self.record, self.tokens)

    @cached_property
    def round_trip_loss(self) -> RoundTripLoss:
        """Return what encoding loses of the text."""
        return self.offsets.round_trip_loss(self.record, self.tokens)


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


class FileWindows(Generic[W]):
    """Splits files into windows, and maps scores back to segments of the text.

    Attributes:
        error: of the first file that could not be read; no windows follow.
    """

    def __init__(self, tokenizer: Tokenizer, splitter: Callable[[], WindowSplitter[W]]) -> None:
        self.error: InputError | None = None
        self._tokenizer, self._cutter = tokenizer, splitter
        self._offsets = TokenOffsets(tokenizer)
        self._waiting: deque[EncodedPiece] = deque()  # read, and not scored to the end
        self._taken = 0  # tokens of the first of them that are
        self._n_read = 0

    @property
    def n_finished(self) -> int:
        """Return how many files have been read and taken to the end."""
        return self._waiting[0].file if self._waiting else self._n_read

    def read(self, files: Sequence[TextFile]) -> Iterator[W]:
        """Yield the windows of files, up to an error; their pieces are buffered until all their tokens are scored."""
        try:
            for number, file in enumerate(files):
                yield from self._read(number, file)
                self._n_read += 1
        except InputError as error:
            self.error = error

    def _read(self, number: int, file: TextFile) -> Iterator[W]:
        splitter, document, first, offset, last = self._cutter(), -1, 0, 0, " "
        for piece in split_into_pieces(file.records(), self._tokenizer):
            if piece.starts:
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

    def _encode(self, piece: Record, file: TextFile) -> Ids:
        try:
            return encode_pieces([piece], self._tokenizer)[0]
        except InputError as error:
            raise error.at(file.name) from None
