"""Surprisal of text: records are read and tokenized, split into windows, and each token is scored exactly once.

A document is its tokens after the start token, if the tokenizer has one. A window has at most `context` input tokens,
each predicting the next. The first window scores all it predicts; each later one begins `stride` tokens further and
scores its last `stride` predictions. So a token sees all preceding tokens, or at least `context - stride + 1` of them.
Without a start token, the first token is unscored, and its bytes don't count.

A masked model reads a document with its start and end token, and predicts one token at a time, which is masked. Of the
overlap of two windows, each scores the half nearer to its middle, so a token sees at least (context - stride) / 2
tokens on either side, or all there are. Source: Salazar et al. 2020 (Masked Language Model Scoring), section 2.

Of an example the completion is scored, of a conversation the replies, of a sentence pair the target, each with its end
token, in one window: what fine-tuning minimises.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from lm.checkpoint import LoadedModel, load_model
from lm.config.data import IGNORE_INDEX, DataKind
from lm.config.evaluation import PerplexityConfig
from lm.config.hardware import HardwareConfig
from lm.config.model import ModelConfig, check_heads_given
from lm.corpus.encode import TreeReader, encode, wrap_sources
from lm.corpus.ragged import RaggedArray
from lm.data.batch import Batch, length_batches
from lm.data.pairs import PairLayout
from lm.data.rows import completion_length_error, truncate_prompt
from lm.errors import InputError, UsageError, nan_logits_error
from lm.hardware import select_inference_hardware
from lm.model.transformer import DecoderOnly, EncoderDecoder, EncoderOnly, Transformer
from lm.processes import ParallelMap
from lm.text.parallel_text import ParallelText
from lm.text.records import Record
from lm.text.text_file import TextFile
from lm.tokenizer.offsets import ByteOffsets, RoundTripLoss, TokenOffsets
from lm.tokenizer.special_tokens import (
    SpecialTokenFrame,
    build_pair_frames,
    build_text_frame,
    choose_language_tag,
    require_mask_token,
)
from lm.tokenizer.tokenizer import encode_pieces, split_into_pieces

Ids = npt.NDArray[np.integer[Any]]
Mask = npt.NDArray[np.bool_]
Nats = npt.NDArray[np.float64]

_MAX_LOGITS = 1 << 26  # bytes, whatever the vocabulary and the batch
_CACHE_LOGITS = 1 << 18  # 1 MB of them
_MIN_FILL = 0.9  # of positions without padding, in batches in reading order
_PREFETCHED_BATCHES = 16  # batches of windows sorted by length together otherwise
_ROWS_AT_ONCE = 4096  # rows sorted by length together: enough that batches have hardly any padding
_PAIR_TOKENS = 4096  # padded tokens of a batch of pairs, of the longer of source and target


@dataclass(frozen=True)
class ScoredTexts:
    """What is scored.

    Attributes:
        files: `TextFile`s; of pairs `ParallelText`s.
        kind: documents ("text"), completions ("examples"), replies ("conversations") or targets ("pairs").
        language: target language of pairs.
        file_language: target language of pairs, if none is requested and file names don't tell.
    """

    files: Sequence[Any]
    kind: DataKind
    language: str | None = None
    file_language: str | None = None

    @property
    def names(self) -> list[str]:
        return [file.name for file in self.files]


@dataclass(frozen=True)
class Piece:
    """Part of a document, or the scored text of a row.

    Attributes:
        file: file index.
        document: index of the document or row in the file.
        text: the text that is scored.
        tokens: its tokens, special tokens after it included.
        starts_document: whether it is the first piece of its document.
        words: whitespace-separated words that begin in it.
        loss: what encoding loses of it.
        find_ends: returns (tokens,) byte offsets in the text where each token ends.
        first: tokens of the document before it.
        offset: bytes of the document before it.
        record: its example, conversation or sentence pair.
        is_shortened: whether its row was truncated to fit the context.
    """

    file: int
    document: int
    text: str
    tokens: Ids
    starts_document: bool
    words: int
    loss: RoundTripLoss
    find_ends: Callable[[], ByteOffsets] = field(repr=False, compare=False)
    first: int = 0
    offset: int = 0
    record: Record | None = None
    is_shortened: bool = False

    @cached_property
    def data(self) -> bytes:
        return self.text.encode()

    @cached_property
    def ends(self) -> ByteOffsets:
        return self.find_ends()


@dataclass(frozen=True)
class Scored:
    """Consecutive scored tokens of a piece; a piece without tokens has one that is empty.

    Attributes:
        first: tokens of the piece before them.
        nats: (tokens,) surprisals; NaN for a token that is not scored.
    """

    piece: Piece
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


@dataclass(frozen=True)
class Window:
    """What the model reads at once.

    Attributes:
        tokens: (length,) IDs; a causal model reads all but the last.
        is_scored: (length,) which of them are scored.
        accounted: which of the tokens it accounts for are scored; each token is accounted for once.
        source: IDs of the source, with tree positions if the model reads them.
    """

    tokens: Ids
    is_scored: Mask
    accounted: Mask
    source: Ids | None = None

    @classmethod
    def of_row(cls, tokens: Ids, is_scored: Mask, source: Ids | None = None) -> Window:
        return cls(tokens, is_scored, np.ones(int(is_scored.sum()), dtype=bool), source)


class WindowSplitter:
    """Splits one document, given in parts, into windows."""

    def __init__(
        self, frame: SpecialTokenFrame, *, context: int, stride: int, masked: bool = False, score_every: int = 1
    ) -> None:
        """Start a document.

        Args:
            frame: its start and end token; a causal model doesn't read the end.
            context: input tokens of a window.
            stride: tokens from one window to the next, at most `context`.
            score_every: score every Nth token of the document.
        """
        self._after = frame.after if masked else ()
        self._length = context if masked else context + 1
        self._reach = (context - stride) // 2 + stride if masked else context + 1  # where a full window's account ends
        self._stride, self._every = stride, score_every
        self._has_first = masked or bool(frame.before)
        self._held: Ids = np.array(frame.before, dtype=np.int64)
        self._first, self._number = len(frame.before), 0

    def push(self, tokens: Ids) -> Iterator[Window]:
        """Yield the windows that are complete with these tokens."""
        self._held = np.concatenate((self._held, tokens))
        while len(self._held) + len(self._after) > self._length:
            yield from self._window(self._held[: self._length], self._reach)
            self._held, self._first = self._held[self._stride :], max(self._first, self._reach) - self._stride

    def finish(self) -> Iterator[Window]:
        """Yield the last window, if tokens are left."""
        yield from self._window(np.append(self._held, np.array(self._after, dtype=np.int64)), len(self._held))

    def _window(self, tokens: Ids, last: int) -> Iterator[Window]:
        """Yield the window that accounts for the tokens from the first unaccounted one to position `last`."""
        count = last - self._first
        if count <= 0:
            return
        accounted = np.ones(count, dtype=bool)
        if self._every > 1:
            accounted[(self._number + np.arange(count)) % self._every != 0] = False
        accounted[0] &= self._has_first or self._number > 0
        is_scored = np.zeros(len(tokens), dtype=bool)
        is_scored[self._first : last] = accounted
        self._number += count
        yield Window(tokens, is_scored, accounted)


def resolve_window_sizes(model: ModelConfig, config: PerplexityConfig) -> tuple[int, int]:
    """Return context and stride for a model.

    Raises:
        UsageError: tokens would be skipped, or the context exceeds the model's positions.
    """
    context = model.context_length if config.context is None else config.context
    stride = max(1, context // 2) if config.stride is None else config.stride
    if stride > context:
        raise UsageError(f"stride {stride} leaves out tokens between windows of {context}; give at most the context")
    limit = model.position_limit
    if limit is not None and context > limit:
        raise UsageError(f"context {context} is beyond the {limit} positions that the model learned")
    return context, stride


def load_window_scorer(
    run: Path, hardware: HardwareConfig, config: PerplexityConfig
) -> Callable[[Sequence[Window]], list[Nats]]:
    """Load a run in a worker process; returns the function that scores batches, for `Scorer.score`."""
    return Scorer(load_model(run, select_inference_hardware(hardware)), config).score_windows


def find_scored_kind(loaded: LoadedModel, files: Sequence[TextFile]) -> DataKind:
    """Return whether to score the text of files, the completions of examples, or the replies of conversations.

    Raises:
        UsageError: the model scores no such texts, or the files are of different kinds.
    """
    config = loaded.config
    if config.model.translates or config.model.labels:
        raise UsageError(f"{loaded.folder}: this run {config.purpose}; it does not score texts")
    kinds: dict[DataKind, str] = {file.kind: file.name for file in files}
    if len(kinds) > 1:
        named = " and ".join(f"{name} holds {kind}" for kind, name in kinds.items())
        raise UsageError(f"{named}; measure them separately")
    if "conversations" in kinds and loaded.tokenizer.chat_template is None:
        raise UsageError(f"{loaded.folder}: has no chat template, so it cannot score conversations; train it on some")
    kind: DataKind = next(iter(kinds), "text")
    if config.model.is_masked and kind != "text":
        raise UsageError(f"{loaded.folder}: this run {config.purpose}; it does not score {kind}: name a text column")
    return kind


class Scorer:
    """Scores texts by a run: each token once, in bounded memory."""

    def __init__(self, loaded: LoadedModel, config: PerplexityConfig) -> None:
        """Use a model in eval mode.

        Raises:
            UsageError: windows would skip tokens or exceed the model's positions.
        """
        self.loaded, self.config, self.model = loaded, config, loaded.model
        self.context, self.stride = resolve_window_sizes(loaded.config.model, config)
        self.is_masked = isinstance(self.model, EncoderOnly)
        self.score_every = config.score_every if self.is_masked else 1
        self._tokenizer, self._offsets = loaded.tokenizer, TokenOffsets(loaded.tokenizer)

    def score(
        self, texts: ScoredTexts, parallel_map: ParallelMap[list[Window], list[Nats]] | None = None
    ) -> Iterator[Scored]:
        """Score texts, in reading order: every token once, and every piece at least once.

        Args:
            parallel_map: scores batches in other processes, by `load_window_scorer`.

        Raises:
            InputError: a file is not text that the tokenizer can encode, or a row exceeds the context or the learned
                positions; or the model outputs NaN.
            UsageError: the tokenizer has no start or end token; or dependency heads or the language are missing.
        """
        waiting: deque[Piece] = deque()  # read, and not scored to the end
        taken = 0  # tokens of the first of them that are
        windows = self._windows(texts, waiting)
        for nats in itertools.chain(self._score_in_order(windows, texts.kind, parallel_map), [np.zeros(0)]):
            rest = nats
            while waiting:
                piece = waiting[0]
                count = min(len(piece.tokens) - taken, len(rest))
                if count == 0 and len(piece.tokens):
                    break
                yield Scored(piece, taken, rest[:count])
                rest, taken = rest[count:], taken + count
                if taken == len(piece.tokens):
                    waiting.popleft()
                    taken = 0

    def _score_in_order(
        self, windows: Iterator[Window], kind: DataKind, parallel_map: ParallelMap[list[Window], list[Nats]] | None
    ) -> Iterator[Nats]:
        """Score windows in batches, in reading order or, if that needs much padding, sorted by length some at a time.

        Yields:
            The nats of some windows, in reading order; NaN where a token is not scored.
        """
        packs: deque[tuple[list[Window], list[int]]] = deque()  # windows, and the order of their batches
        rows, tokens = self.config.batch_size, _PAIR_TOKENS if kind == "pairs" else None
        ahead = _PREFETCHED_BATCHES * rows if kind == "text" else _ROWS_AT_ONCE

        def make_batches() -> Iterator[list[Window]]:
            while pack := list(itertools.islice(windows, rows)):
                lengths = [len(window.tokens) for window in pack]
                parts = [np.arange(len(pack))]
                if tokens or sum(lengths) < _MIN_FILL * len(pack) * max(lengths):
                    pack += itertools.islice(windows, ahead - len(pack))
                    own, sources = (
                        np.array([len(ids) for ids in each])
                        for each in zip(
                            *((window.tokens, () if window.source is None else window.source) for window in pack),
                            strict=True,
                        )
                    )
                    combined = own + sources if self.model.config.decoder_only else np.maximum(own, sources)
                    order = np.lexsort((sources, own))
                    parts = length_batches(combined, rows=None if tokens else rows, tokens=tokens, order=order)
                packs.append((pack, np.concatenate(parts).tolist()))
                yield from ([pack[index] for index in part] for part in parts)

        done: list[Nats] = []
        batches = make_batches()
        for scored in map(self.score_windows, batches) if parallel_map is None else parallel_map(batches):
            done += scored
            pack, order = packs[0]
            if len(done) < len(pack):
                continue
            nats = [np.full(len(window.accounted), np.nan) for window in pack]
            for index, values in zip(order, done, strict=True):
                nats[index][pack[index].accounted] = values
            yield np.concatenate(nats)
            packs.popleft()
            done = []

    def _windows(self, texts: ScoredTexts, waiting: deque[Piece]) -> Iterator[Window]:
        """Yield the windows of texts; their pieces are appended to `waiting`."""
        readers: dict[str, Callable[[int, Any], Iterator[Piece | Window]]] = {
            "text": self._read_documents,
            "examples": self._read_rows,
            "conversations": self._read_rows,
            "pairs": partial(self._read_pairs, texts=texts),
        }
        for number, file in enumerate(texts.files):
            for part in readers[texts.kind](number, file):
                if isinstance(part, Window):
                    yield part
                else:
                    waiting.append(part)

    def _read_documents(self, number: int, file: TextFile) -> Iterator[Piece | Window]:
        start = partial(
            WindowSplitter, build_text_frame(self._tokenizer), context=self.context, stride=self.stride,
            masked=self.is_masked, score_every=self.score_every,
        )  # fmt: skip
        splitter, document, first, offset, last = start(), -1, 0, 0, " "
        for text in split_into_pieces(file.records(), self._tokenizer):
            if text.starts:
                yield from splitter.finish()
                splitter, document, first, offset, last = start(), document + 1, 0, 0, " "
            try:
                (tokens,) = encode_pieces([text], self._tokenizer)
            except InputError as error:
                raise error.at(file.name) from None
            words = len(text.text.split()) - (not (last.isspace() or text.text[0].isspace()))
            loss, ends = self._offsets.round_trip_loss(text, tokens), partial(self._offsets.ends, text, tokens)
            piece = Piece(number, document, text.text, tokens, text.starts, words, loss, ends, first, offset)
            yield piece
            first, offset, last = first + len(tokens), offset + len(piece.data), text.text[-1]
            yield from splitter.push(tokens)
        yield from splitter.finish()

    def _read_rows(self, number: int, file: TextFile) -> Iterator[Piece | Window]:
        """Yield examples or conversations as training reads them; see `lm.data.rows`."""
        for index, row in enumerate(file.records()):
            where = f"{file.name}: line {row.line}"
            try:
                whole, ids, is_scored, texts = self._encode_row(row)
            except InputError as error:
                raise error.at(where) from None
            make = partial(self._make_row, number, index, record=row, is_shortened=len(ids) < len(whole))
            scored = ids[is_scored]
            if not len(scored):
                yield make("", scored, ends=[])
                continue
            begin = 0
            for text, ends in texts:
                yield make(text, scored[begin : begin + len(ends)], ends=ends, starts=begin == 0)
                begin += len(ends)
            yield Window.of_row(ids, is_scored)

    def _encode_row(self, row: Record) -> tuple[Ids, Ids, Mask, list[tuple[str, Sequence[int]]]]:
        """Return all tokens, those within the context, which are scored, and the texts with their tokens' ends."""
        (encoded,) = encode([row], (self._tokenizer, None))
        if encoded.replies is None:
            if problem := completion_length_error(encoded.learned, context=self.context):
                raise InputError(f"{problem}; leave it out")
            ids = truncate_prompt(encoded.tokens, context=self.context)
            completion = encoded.tokens[len(encoded.tokens) - encoded.learned : -1]  # without its end
            is_scored = np.arange(len(ids)) >= len(ids) - encoded.learned
            return encoded.tokens, ids, is_scored, [self._with_ends(row.parts[-1].text, completion)]
        size = self.context + 1
        is_reply, texts = encoded.replies[:size] >= 0, list[tuple[str, Sequence[int]]]()
        for is_learned, run in itertools.groupby(zip(is_reply, encoded.spelled, strict=False), key=itemgetter(0)):
            parts = [text for _, text in run]
            if is_learned:
                texts.append(("".join(parts), np.cumsum([len(part.encode()) for part in parts]).tolist()))
        return encoded.tokens, encoded.tokens[:size], is_reply, texts

    def _read_pairs(self, number: int, file: ParallelText, *, texts: ScoredTexts) -> Iterator[Piece | Window]:
        config, source_tokenizer = self.loaded.config, self.loaded.source_tokenizer or self._tokenizer
        if not config.model.translates:
            raise UsageError(f"{self.loaded.folder}: this run {config.purpose}; it does not score sentence pairs")
        check_heads_given(config.model, are_given=file.heads is not None)
        tag = choose_language_tag(
            source_tokenizer, texts.language, file_language=texts.file_language or file.languages[1],
            has_tags=config.has_language_tags,
        )  # fmt: skip
        frames, trees = build_pair_frames(self._tokenizer, source_tokenizer, tag=tag), TreeReader(source_tokenizer)
        layout, limit = PairLayout(config.model.decoder_only), config.model.position_limit
        for index, pair in enumerate(file.records()):
            where = f"{file.name}: line {pair.line}"
            if pair.source is None or pair.is_blank:
                yield self._make_row(number, index, "", np.zeros(0, np.int64), ends=[])
                continue
            source: Ids = source_tokenizer.encode_batch([pair.source])[0]
            target = self._encode(pair.text, where)
            if pair.dependency_heads is not None:
                source = trees.read(pair.source, source, pair.dependency_heads)
            sources = wrap_sources(RaggedArray.from_rows([source]), frames.source)
            tokens = frames.target.wrap(target)
            length = int(layout.lengths(sources.lengths(), np.array([len(tokens)]))[0])
            if limit is not None and length > limit:
                raise InputError(
                    f"{where} has {length:,} tokens, but the model's positions end at {limit:,}; leave it out"
                )
            text, ends = self._with_ends(pair.text, target)
            yield self._make_row(number, index, text, tokens, ends=ends, starts=True, record=pair)
            yield Window.of_row(tokens, np.ones(len(tokens), dtype=bool), sources.values)

    def _encode(self, text: str, where: str) -> Ids:
        try:
            return self._tokenizer.encode_batch([text])[0]
        except InputError as error:
            raise error.at(where) from None

    def _with_ends(self, text: str, tokens: Ids) -> tuple[str, Sequence[int]]:
        """Return a text with the ends of its tokens and of the end token after it."""
        return text, [*self._offsets.ends(Record.of_text(text), tokens).tolist(), len(text.encode())]

    def _make_row(
        self, file: int, row: int, text: str, tokens: Ids, *, ends: Sequence[int], starts: bool = False, **fields: Any
    ) -> Piece:
        """Return the piece of a row; one that is left out has neither text nor tokens."""
        loss = self._offsets.round_trip_loss(Record.of_text(text), self._encode(text, "")) if text else RoundTripLoss()
        return Piece(file, row, text, tokens, starts, len(text.split()), loss, lambda: np.array(ends), **fields)

    @torch.inference_mode()
    def score_windows(self, windows: Sequence[Window]) -> list[Nats]:
        """Return (scored tokens,) nats of each window."""
        if isinstance(self.model, EncoderOnly):
            scored = [self._score_masked(self.model, window) for window in windows]
        else:
            scored = score_batch(self.model, self._make_batch(windows))
        if not all(np.isfinite(nats).all() for nats in scored):
            raise nan_logits_error()
        return scored

    def _make_batch(self, windows: Sequence[Window]) -> Batch:
        tokens = [window.tokens for window in windows]
        sources = [window.source for window in windows if window.source is not None]
        if not sources:
            return Batch.from_rows(tokens, [window.is_scored for window in windows])
        start = build_pair_frames(self._tokenizer, self.loaded.source_tokenizer).start
        layout = PairLayout(self.model.config.decoder_only)
        return layout.batch(RaggedArray.from_rows(sources), RaggedArray.from_rows(tokens), start=start)

    def _score_masked(self, model: EncoderOnly, window: Window) -> Nats:
        """Mask each token in a row of its own."""
        mask, scored = require_mask_token(self._tokenizer), []
        tokens = torch.from_numpy(window.tokens.astype(np.int64)).to(next(model.parameters()).device)
        for places in torch.from_numpy(np.flatnonzero(window.is_scored)).split(self.config.batch_size):
            masked, row = places.to(tokens.device), torch.arange(len(places), device=tokens.device)
            rows = tokens.repeat(len(places), 1)
            rows[row, masked] = mask
            scored.append(compute_surprisals(model, model.hidden(rows)[row, masked], tokens[masked]))
        return np.concatenate([np.zeros(0), *scored])


@torch.inference_mode()
def score_batch(model: DecoderOnly | EncoderDecoder, batch: Batch) -> list[Nats]:
    """Compute the surprisal of the targets of a training batch.

    Logits are computed only for targets, a bounded number at a time.

    Args:
        model: in eval mode; an `EncoderDecoder` for a batch with a source.

    Returns:
        (targets,) nats of each row.
    """
    is_target, device = batch.targets != IGNORE_INDEX, next(model.parameters()).device
    if not is_target.any():
        return [np.zeros(0)] * batch.rows
    inputs, targets, positions = (torch.from_numpy(ids).to(device) for ids in (batch.inputs, batch.targets, is_target))
    if isinstance(model, EncoderDecoder):
        assert batch.source is not None
        assert batch.source_lengths is not None
        source, lengths = (torch.from_numpy(ids).to(device) for ids in (batch.source, batch.source_lengths))
        hidden = model.encode_decode(source, inputs, lengths=lengths)
    else:
        hidden = model.hidden(inputs)  # padding comes last, so nothing that counts sees it
    nats = compute_surprisals(model, hidden[positions], targets[positions])
    return np.split(nats, np.cumsum(is_target.sum(axis=1))[:-1])


def compute_surprisals(model: Transformer, hidden: torch.Tensor, targets: torch.Tensor) -> Nats:
    """Return (tokens,) nats for (tokens, d_model) hidden states and (tokens,) target IDs.

    A CPU takes the logits of a few rows at a time, which stay in cache: a third of the time, and the same numbers.
    """
    rows, parts = max(1, _MAX_LOGITS // (hidden.element_size() * model.config.vocab_size)), []
    for states, expected in zip(hidden.split(rows), targets.split(rows), strict=True):
        logits = model.logits(states)
        some = max(1, _CACHE_LOGITS // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
        for part, wanted in zip(logits.split(some), expected.split(some), strict=True):
            parts.append(F.cross_entropy(part.float(), wanted, reduction="none"))
    return torch.cat(parts).cpu().numpy().astype(np.float64)
