"""Files of any size as the text of their tokens, with the surprisal of each, in reading order: in bounded memory."""

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
from lm.errors import InputError, not_a_number
from lm.evaluation.scoring import Nats
from lm.evaluation.windows import Ids
from lm.processes import Share
from lm.text.documents import read_fragments
from lm.text.files import TextFile
from lm.tokenizer.offsets import ByteOffsets, RoundTripLoss, TokenOffsets
from lm.tokenizer.tokenizer import TextPiece, Tokenizer, split_into_pieces

_MIN_FILL = 0.9
"""The share of a batch's positions that are real from which on it is full enough to be read as it is."""
_PREFETCHED_BATCHES = 16
"""Batches of windows that are put in order of length together where they are not."""


class HasTokens(Protocol):
    """What windows of all kinds have."""

    @property
    def tokens(self) -> Ids:
        """What is read at once."""
        ...


W = TypeVar("W", bound=HasTokens)
T = TypeVar("T")


class WindowBatcher(Generic[W]):
    """Puts windows into batches: in reading order; or, where they would be padded much, some read ahead, by length."""

    def __init__(self, windows: Iterable[W], size: int) -> None:
        """Of windows in reading order, and batches of so many."""
        self._windows, self._size = iter(windows), size
        self._packs: deque[list[NDArray[np.int64]]] = deque()  # for each pack, the numbers of the windows in each batch

    def batches(self) -> Iterator[list[W]]:
        """The batches, each as it is asked for."""
        while pack := list(islice(self._windows, self._size)):
            lengths = [len(window.tokens) for window in pack]
            parts = [np.arange(len(pack))]
            if sum(lengths) < _MIN_FILL * len(pack) * max(lengths):
                pack += islice(self._windows, (_PREFETCHED_BATCHES - 1) * self._size)
                parts = length_batches([len(window.tokens) for window in pack], rows=self._size)
            self._packs.append(parts)
            yield from ([pack[place] for place in part] for part in parts)

    def restore_order(self, scored: Iterable[Sequence[T]]) -> Iterator[list[T]]:
        """What was made of the windows of each batch, in reading order, as soon as that is whole."""
        held: dict[int, T] = {}
        done = 0
        for batch in scored:
            held |= zip(self._packs[0][done].tolist(), batch, strict=True)
            done += 1
            if done == len(self._packs[0]):
                self._packs.popleft()
                yield [held[place] for place in range(len(held))]
                held, done = {}, 0


W_co = TypeVar("W_co", covariant=True, bound=HasTokens)


@dataclass(frozen=True)
class Passage:
    """Part of a document, as text and as tokens.

    Attributes:
        file: which of the files, from 0.
        document: which document of the file, from 0.
        first: tokens of the document before this passage.
        offset: bytes of the document before it.
        piece: the text.
        tokens: its ids.
        words: whitespace-separated words that begin in it.
    """

    file: int
    document: int
    first: int
    offset: int
    piece: TextPiece
    tokens: Ids
    words: int
    offsets: TokenOffsets = field(repr=False, compare=False)

    @cached_property
    def data(self) -> bytes:
        """The text, in UTF-8."""
        return self.piece.text.encode()

    @cached_property
    def ends(self) -> ByteOffsets:
        """(tokens,) where in `data` each token ends."""
        return self.offsets.ends(self.piece, self.tokens)

    @cached_property
    def loss(self) -> RoundTripLoss:
        """What the tokenizer loses of the text."""
        return self.offsets.loss(self.piece, self.tokens)


@dataclass(frozen=True)
class ScoredSegment:
    """Consecutive tokens of a passage, scored; a passage without tokens is one stretch of none.

    Attributes:
        passage: what they are part of.
        first: tokens of the passage before them.
        nats: (tokens,) their surprisals; NaN for a token that is not scored.
    """

    passage: Passage
    first: int
    nats: Nats

    @property
    def tokens(self) -> Ids:
        """(tokens,) their ids."""
        return self.passage.tokens[self.first : self.first + len(self.nats)]

    @property
    def start(self) -> int:
        """Where in the passage's data the first of them begins."""
        return int(self.passage.ends[self.first - 1]) if self.first else 0

    @property
    def ends(self) -> ByteOffsets:
        """(tokens,) where in the passage's data each of them ends."""
        return self.passage.ends[self.first : self.first + len(self.nats)]


class WindowScorer(Protocol[W]):
    """How a model reads documents to score their tokens: in which windows, and what it makes of those."""

    def make_splitter(self) -> WindowSplitter[W]:
        """What cuts the next document."""
        ...

    def score(self, windows: Sequence[W]) -> list[Nats]:
        """For each window the surprisals of the tokens that it accounts for; NaN for those that are not scored."""
        ...

    def unscored(self, segment: ScoredSegment) -> int:
        """How many tokens of a stretch are not to be scored."""
        ...


class WindowSplitter(Protocol[W_co]):
    """Cuts one document, which comes in parts, into windows."""

    def push(self, tokens: Ids) -> Iterator[W_co]:
        """The windows that are complete now that these tokens are known."""
        ...

    def finish(self) -> Iterator[W_co]:
        """The last window, if anything is left to account for."""
        ...


def score_files(
    window_scorer: WindowScorer[W],
    tokenizer: Tokenizer,
    files: Sequence[TextFile],
    *,
    separator: str,
    batch_size: int,
    parallel_map: Share[list[W], list[Nats]] | None = None,
) -> Iterator[list[ScoredSegment]]:
    """Score files of any size in bounded memory, each document apart.

    Args:
        window_scorer: of a model.
        tokenizer: the model's.
        files: of text.
        separator: the line that ends a document within a file.
        batch_size: windows scored together, of whatever files.
        parallel_map: has batches scored by other processes, each with such a reading.

    Yields:
        What is scored after each batch, in reading order: every token once, and every passage at least once.

    Raises:
        InputError: a file is not text that the tokenizer can encode, or the model's output is not a number.
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
                raise not_a_number(files[segment.passage.file].name)
        yield taken
    if rest := list(reader.take(np.zeros(0))):
        yield rest


class _FileWindows(Generic[W]):
    """Turns files into windows, and gives what is scored back as stretches of the text that was read."""

    def __init__(self, tokenizer: Tokenizer, separator: str, cutter: Callable[[], WindowSplitter[W]]) -> None:
        self._tokenizer, self._separator, self._cutter = tokenizer, separator, cutter
        self._offsets = TokenOffsets(tokenizer)
        self._waiting: deque[Passage] = deque()  # read, and not scored to the end
        self._taken = 0  # tokens of the first of them that are

    def read(self, number: int, file: TextFile) -> Iterator[W]:
        """The windows of a file; its passages wait until all of their tokens are scored.

        Args:
            number: of the file, from 0.
            file: of text.
        """
        cutter, document, first, offset, last = self._cutter(), -1, 0, 0, " "
        for piece in split_into_pieces(read_fragments(file, self._separator), self._tokenizer):
            if piece.starts_document:
                yield from cutter.finish()
                cutter, document, first, offset, last = self._cutter(), document + 1, 0, 0, " "
            tokens = self._encode(piece, file)
            words = len(piece.text.split()) - (not (last.isspace() or piece.text[0].isspace()))
            self._waiting.append(Passage(number, document, first, offset, piece, tokens, words, self._offsets))
            first, offset, last = first + len(tokens), offset + len(piece.text.encode()), piece.text[-1]
            yield from cutter.push(tokens)
        yield from cutter.finish()

    def take(self, nats: Nats) -> Iterator[ScoredSegment]:
        """The next tokens that were read, with these surprisals, and passages without tokens among them."""
        while self._waiting:
            passage = self._waiting[0]
            count = min(len(passage.tokens) - self._taken, len(nats))
            if count == 0 and len(passage.tokens):
                return
            yield ScoredSegment(passage, self._taken, nats[:count])
            nats, self._taken = nats[count:], self._taken + count
            if self._taken == len(passage.tokens):
                self._waiting.popleft()
                self._taken = 0

    def _encode(self, piece: TextPiece, file: TextFile) -> Ids:
        try:
            return self._tokenizer.encode_batch([piece.context + piece.text])[0][piece.context_tokens :]
        except InputError as error:
            raise error.at(file.name) from None
