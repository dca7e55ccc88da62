"""The surprisal of every token of files of any size, in reading order, next to the text: in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from lm.config.data import IGNORED
from lm.data.batch import Batch
from lm.errors import InputError
from lm.evaluation.packing import Packing, Tokens, W
from lm.evaluation.windows import Cutter, Ids, Window
from lm.model.transformer import DecoderOnly, EncoderDecoder, Transformer
from lm.processes import Share
from lm.text.documents import fragments
from lm.text.files import TextFile
from lm.tokenizer.offsets import Ends, TokenOffsets
from lm.tokenizer.pieces import Piece, pieces
from lm.tokenizer.tokenizer import Tokenizer

Nats = npt.NDArray[np.float64]
W_co = TypeVar("W_co", covariant=True, bound=Tokens)

_LOGITS_AT_ONCE = 1 << 26  # bytes, whatever the vocabulary and the batch
_IN_CACHE = 1 << 18  # 1 MB of them


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
    piece: Piece
    tokens: Ids
    words: int
    offsets: TokenOffsets = field(repr=False, compare=False)

    @cached_property
    def data(self) -> bytes:
        """The text, in UTF-8."""
        return self.piece.text.encode()

    @cached_property
    def ends(self) -> Ends:
        """(tokens,) where in `data` each token ends."""
        return self.offsets.ends(self.piece, self.tokens)


@dataclass(frozen=True)
class Stretch:
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
    def ends(self) -> Ends:
        """(tokens,) where in the passage's data each of them ends."""
        return self.passage.ends[self.first : self.first + len(self.nats)]


def score(
    model: DecoderOnly,
    tokens: Sequence[int] | Ids,
    *,
    context: int,
    stride: int,
    start_token: int | None,
    batch_size: int = 16,
) -> Nats:
    """Surprisal of each token of one document, in order.

    Args:
        model: in eval mode.
        tokens: the document's ids.
        context: tokens the model reads at once.
        stride: from one window to the next, at most `context`.
        start_token: what the first token is predicted from; without it the first token is left out.
        batch_size: windows scored together.

    Returns:
        (tokens,) nats in float64, or (tokens - 1,) without a start token.
    """
    cutter = Cutter(context=context, stride=stride, start_token=start_token)
    windows = (window for part in (cutter.push(np.asarray(tokens, dtype=np.int64)), cutter.finish()) for window in part)
    nats = [part for batch in _batches(windows, batch_size) for part in score_windows(model, batch)]
    return np.concatenate(nats)[int(start_token is None) :] if nats else np.zeros(0)


class Reading(Protocol[W]):
    """How a model reads documents to score their tokens: in which windows, and what it makes of those."""

    def cutter(self) -> WindowCutter[W]:
        """What cuts the next document."""
        ...

    def score(self, windows: Sequence[W]) -> list[Nats]:
        """For each window the surprisals of the tokens that it accounts for; NaN for those that are not scored."""
        ...

    def unscored(self, stretch: Stretch) -> int:
        """How many tokens of a stretch are not to be scored."""
        ...


class WindowCutter(Protocol[W_co]):
    """Cuts one document, which comes in parts, into windows."""

    def push(self, tokens: Ids) -> Iterator[W_co]:
        """The windows that are complete now that these tokens are known."""
        ...

    def finish(self) -> Iterator[W_co]:
        """The last window, if anything is left to account for."""
        ...


def stretches(
    reading: Reading[W],
    tokenizer: Tokenizer,
    files: Sequence[TextFile],
    *,
    separator: str,
    batch_size: int,
    share: Share[list[W], list[Nats]] | None = None,
) -> Iterator[list[Stretch]]:
    """Score files of any size in bounded memory, each document apart.

    Args:
        reading: of a model.
        tokenizer: the model's.
        files: of text.
        separator: the line that ends a document within a file.
        batch_size: windows scored together, of whatever files.
        share: has batches scored by other processes, each with such a reading.

    Yields:
        What is scored after each batch, in reading order: every token once, and every passage at least once.

    Raises:
        InputError: a file is not text that the tokenizer can encode, or the model's output is not a number.
    """
    reader = _Reader(tokenizer, separator, reading.cutter)
    windows = (window for number, file in enumerate(files) for window in reader.read(number, file))
    packing = Packing(windows, batch_size)
    batches = packing.batches()
    for scored in packing.unpacked(map(reading.score, batches) if share is None else share(batches)):
        taken = list(reader.take(np.concatenate(scored)))
        for stretch in taken:
            if np.isinf(stretch.nats).any() or np.isnan(stretch.nats).sum() > reading.unscored(stretch):
                name = files[stretch.passage.file].name
                raise InputError(f"{name}: the model's output on this file is not a number; the model is damaged")
        yield taken
    if rest := list(reader.take(np.zeros(0))):
        yield rest


class _Reader(Generic[W]):
    """Turns files into windows, and gives what is scored back as stretches of the text that was read."""

    def __init__(self, tokenizer: Tokenizer, separator: str, cutter: Callable[[], WindowCutter[W]]) -> None:
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
        for piece in pieces(fragments(file, self._separator), self._tokenizer):
            if piece.starts_document:
                yield from cutter.finish()
                cutter, document, first, offset, last = self._cutter(), document + 1, 0, 0, " "
            tokens = self._encode(piece, file)
            words = len(piece.text.split()) - (not (last.isspace() or piece.text[0].isspace()))
            self._waiting.append(Passage(number, document, first, offset, piece, tokens, words, self._offsets))
            first, offset, last = first + len(tokens), offset + len(piece.text.encode()), piece.text[-1]
            yield from cutter.push(tokens)
        yield from cutter.finish()

    def take(self, nats: Nats) -> Iterator[Stretch]:
        """The next tokens that were read, with these surprisals, and passages without tokens among them."""
        while self._waiting:
            passage = self._waiting[0]
            count = min(len(passage.tokens) - self._taken, len(nats))
            if count == 0 and len(passage.tokens):
                return
            yield Stretch(passage, self._taken, nats[:count])
            nats, self._taken = nats[count:], self._taken + count
            if self._taken == len(passage.tokens):
                self._waiting.popleft()
                self._taken = 0

    def _encode(self, piece: Piece, file: TextFile) -> Ids:
        try:
            return self._tokenizer.encode_batch([piece.context + piece.text])[0][piece.context_tokens :]
        except InputError as error:
            raise InputError(f"{file.name}: {error}") from None


def _batches(windows: Iterable[W], size: int) -> Iterator[list[W]]:
    iterator = iter(windows)
    while batch := list(islice(iterator, size)):
        yield batch


def score_windows(model: DecoderOnly, windows: Sequence[Window]) -> list[Nats]:
    """NaN for the unscored and the surprisal of the scored tokens of each window."""
    batch = Batch.of_rows([window.tokens for window in windows], [window.scored for window in windows])
    scored = score_batch(model, batch)
    return [
        np.concatenate((np.full(window.unscored, np.nan), nats)) for window, nats in zip(windows, scored, strict=True)
    ]


@torch.inference_mode()
def score_batch(model: DecoderOnly | EncoderDecoder, batch: Batch) -> list[Nats]:
    """The surprisal of the targets of a batch, which is one that the model could learn from.

    Logits are computed for what is predicted only, a bounded number at a time.

    Args:
        model: in eval mode; an `EncoderDecoder` for a batch with a source.
        batch: what to read and predict.

    Returns:
        (targets,) nats of each row.
    """
    predicted, device = batch.targets != IGNORED, next(model.parameters()).device
    if not predicted.any():
        return [np.zeros(0)] * batch.rows
    inputs, targets, places = (torch.from_numpy(ids).to(device) for ids in (batch.inputs, batch.targets, predicted))
    if isinstance(model, EncoderDecoder):
        assert batch.source is not None
        assert batch.source_lengths is not None
        source, lengths = (torch.from_numpy(ids).to(device) for ids in (batch.source, batch.source_lengths))
        hidden = model.read(source, inputs, lengths=lengths)
    else:
        hidden = model.hidden(inputs)  # padding comes last, so nothing that counts sees it
    nats = surprisals(model, hidden[places], targets[places])
    return np.split(nats, np.cumsum(predicted.sum(axis=1))[:-1])


def scored_batches(
    model: DecoderOnly | EncoderDecoder, batches: Iterable[Batch], share: Share[Batch, list[Nats]] | None = None
) -> Iterator[list[Nats]]:
    """`score_batch` of each batch, in order; by other processes, if there is a `share`."""
    return (score_batch(model, batch) for batch in batches) if share is None else share(batches)


def surprisals(model: Transformer, hidden: torch.Tensor, targets: torch.Tensor) -> Nats:
    """(tokens, d_model) final states and (tokens,) ids that follow them -> (tokens,) nats."""
    rows = max(1, _LOGITS_AT_ONCE // (hidden.element_size() * model.config.vocab_size))
    parts = [
        part
        for states, expected in zip(hidden.split(rows), targets.split(rows), strict=True)
        for part in _cross_entropies(model.logits(states), expected)
    ]
    return torch.cat(parts).cpu().numpy().astype(np.float64)


def _cross_entropies(logits: torch.Tensor, targets: torch.Tensor) -> Iterator[torch.Tensor]:
    """(rows, vocabulary) logits and (rows,) targets -> (rows,) nats in parts, computed in float32.

    A CPU takes a few rows at a time, which stay in its cache: a third of the time and less, and the same numbers.
    """
    rows = max(1, _IN_CACHE // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    for some, expected in zip(logits.split(rows), targets.split(rows), strict=True):
        yield F.cross_entropy(some.float(), expected, reduction="none")
