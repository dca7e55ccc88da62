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

import copy
import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn

from lm.checkpoint import LoadedModel
from lm.config.inference import PerplexityConfig
from lm.config.model import ModelConfig, check_heads_given
from lm.config.run_config import IGNORE_INDEX, DataKind
from lm.corpus import RaggedArray
from lm.corpus.encode import attach_positions, encode, wrap_sources
from lm.data import Batch, length_batches
from lm.data.pairs import PairLayout
from lm.data.windows import truncate_prompt
from lm.errors import InputError, UsageError, nan_logits_error
from lm.model import DecoderOnly, EncoderDecoder, EncoderOnly, Model, Transformer
from lm.model.loss import linear_cross_entropy
from lm.text import Record
from lm.tokenizer import encode_pieces, split_into_pieces
from lm.tokenizer.chat_template import (
    PairSpecialTokens,
    SpecialTokenFrame,
    build_pair_frames,
    build_text_frame,
    choose_language_tag,
    require_mask_token,
)
from lm.tokenizer.offsets import ByteOffsets, RoundTripLoss, TokenOffsets

Ids = npt.NDArray[np.integer[Any]]
Mask = npt.NDArray[np.bool_]
Nats = npt.NDArray[np.float64]

_MAX_LOGITS = 1 << 26  # bytes, whatever the vocabulary and the batch
_CACHE_LOGITS = 1 << 18  # 1 MB of them
_MIN_FILL = 0.9  # of positions without padding, in batches in reading order
_PREFETCHED_BATCHES = 16  # batches of windows sorted by length together otherwise
_ROWS_AT_ONCE = 4096  # rows sorted by length together: enough that batches have hardly any padding
_PAIR_TOKENS = 4096  # padded tokens of a batch of pairs, of the longer of source and target
_UNSCORED: Nats = np.zeros(0)


@dataclass(frozen=True)
class ScoredTexts:
    """What is scored.

    Attributes:
        files: of one kind, with a name and records.
        language: requested target language of pairs.
    """

    files: Sequence[Any]
    language: str | None = None

    @property
    def kind(self) -> DataKind:
        """What is scored: documents, completions of examples, replies of conversations, or targets of pairs."""
        kind: DataKind = self.files[0].kind
        return kind

    @property
    def names(self) -> list[str]:
        return [file.name for file in self.files]


@dataclass
class Scored:
    """Scored text: part of a document, a completion, a reply or a target; of a row that is left out nothing.

    Attributes:
        file: file index.
        document: index of the document or row in the file.
        text: the text that is scored.
        tokens: (tokens,) its IDs, special tokens after it included.
        ends: (tokens,) byte offsets in the text where each token ends.
        starts: whether it is the first text of its document or row.
        words: whitespace-separated words that begin in it.
        loss: what encoding loses of it.
        unscored: first tokens that nothing predicts: 1 or 0.
        record: its example, conversation or sentence pair.
        is_shortened: whether its row was truncated to fit the context.
        nats: (tokens,) surprisals; NaN for an unscored token.
    """

    file: int
    document: int
    text: str
    tokens: Ids
    ends: ByteOffsets
    starts: bool
    words: int
    loss: RoundTripLoss
    unscored: int = 0
    record: Record | None = None
    is_shortened: bool = False
    nats: Nats = field(default_factory=lambda: _UNSCORED)


@dataclass(frozen=True)
class Window:
    """What the model reads at once.

    Attributes:
        tokens: (length,) IDs; a causal model reads all but the last.
        is_scored: (length,) which of them are scored.
        source: IDs of the source, with tree positions if the model reads them.
    """

    tokens: Ids
    is_scored: Mask
    source: Ids | None = None


def split_windows(
    parts: Iterable[tuple[Ids, bool]], frame: SpecialTokenFrame, *, context: int, stride: int, masked: bool = False
) -> Iterator[Window]:
    """Split documents into windows.

    Args:
        parts: tokens, and whether a document starts with them.
        frame: start and end token of a document; a causal model doesn't read the end.
        context: input tokens of a window.
        stride: tokens from one window to the next, at most `context`.
    """
    after = np.array(frame.after if masked else (), dtype=np.int64)
    length = context if masked else context + 1
    reach = (context - stride) // 2 + stride if masked else length  # up to where a full window scores
    held, first = after[:0], 0  # tokens of the document that are still read, and the first of them that is unscored
    for tokens, starts in itertools.chain(parts, [(held, True)]):
        if starts:
            if first < len(held):
                yield _scoring_window(np.append(held, after), first, len(held))
            held, first = np.array(frame.before, dtype=np.int64), len(frame.before) if masked else 1
        held = np.append(held, tokens)
        while len(held) + len(after) > length:
            if first < reach:
                yield _scoring_window(held[:length], first, reach)
            held, first = held[stride:], max(first, reach) - stride


def _scoring_window(tokens: Ids, first: int, stop: int) -> Window:
    places = np.arange(len(tokens))
    return Window(tokens, (places >= first) & (places < stop))


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


class Scorer:
    """Scores texts by a run: each token once, in bounded memory."""

    def __init__(self, loaded: LoadedModel, config: PerplexityConfig) -> None:
        """Use a model in eval mode; UsageError if windows would skip tokens or exceed the model's positions."""
        self.loaded, self.batch_size, self.adapt = loaded, config.batch_size, config.adapt
        self.model = copy.deepcopy(loaded.model).float() if config.adapt else loaded.model
        self.context, self.stride = resolve_window_sizes(loaded.config.model, config)
        self.is_masked = isinstance(self.model, EncoderOnly)
        if self.adapt and (self.is_masked or not self.model.output_layer[0].is_floating_point()):
            raise UsageError("perplexity.adapt: masked models and int8 weights can't learn while they score")
        if self.adapt:
            weights = self.model.requires_grad_(True).parameters()
            for layer in self.model.modules():
                layer.train(isinstance(layer, nn.RNNBase))  # whose gradients cuDNN computes in training mode only
            self._optimizer = torch.optim.Adam(weights, lr=self.adapt, betas=(0.0, 0.99))
        self._tokenizer, self._offsets = loaded.tokenizer, TokenOffsets(loaded.tokenizer)
        self._layout = PairLayout(loaded.config.model.decoder_only)

    def score(self, texts: ScoredTexts) -> Iterator[Scored]:
        """Score texts, in reading order.

        Raises:
            InputError: a file is not text that the tokenizer can encode, or a row exceeds the context or the learned
                positions; or the model outputs NaN.
            UsageError: the tokenizer has no start or end token; or dependency heads or the language are missing.
        """
        waiting: deque[Scored] = deque()  # read, and not scored to the end
        nats = _UNSCORED  # of the first of them
        for more in itertools.chain(self._score_in_order(self._windows(texts, waiting), texts.kind), [nats]):
            nats = np.append(nats, more)
            while waiting and len(nats) >= (count := len(waiting[0].tokens) - waiting[0].unscored):
                scored = waiting.popleft()
                scored.nats, nats = np.append([np.nan] * scored.unscored, nats[:count]), nats[count:]
                yield scored

    def _score_in_order(self, windows: Iterator[Window], kind: DataKind) -> Iterator[Nats]:
        """Yield the nats of some windows at a time, in reading order.

        Batches are in reading order or, if that needs much padding, of windows sorted by length.
        """
        rows, tokens = self.batch_size, _PAIR_TOKENS if kind == "pairs" else None
        ahead = rows if self.adapt else _PREFETCHED_BATCHES * rows if kind == "text" else max(rows, _ROWS_AT_ONCE)
        while pack := list(itertools.islice(windows, rows)):
            lengths = [len(window.tokens) for window in pack]
            batches = [np.arange(len(pack))]
            if tokens or sum(lengths) < _MIN_FILL * len(pack) * max(lengths):
                pack += itertools.islice(windows, ahead - len(pack))
                own = np.array([len(window.tokens) for window in pack])
                sources = np.array([0 if window.source is None else len(window.source) for window in pack])
                combined, order = self._layout.lengths(sources, own), np.lexsort((sources, own))
                batches = length_batches(combined, rows=None if tokens else rows, tokens=tokens, order=order)
            nats = [_UNSCORED] * len(pack)
            for batch in batches:
                for index, values in zip(batch, self.score_windows([pack[each] for each in batch]), strict=True):
                    nats[index] = values
            if self.adapt:
                self._learn(pack)
            yield np.concatenate(nats)

    def _windows(self, texts: ScoredTexts, waiting: deque[Scored]) -> Iterator[Window]:
        """Yield the windows of texts, which are appended to `waiting`."""
        frame = build_text_frame(self._tokenizer)
        for number, file in enumerate(texts.files):
            if texts.kind == "text":
                parts = self._read_documents(number, file, waiting)
                sizes = {"context": self.context, "stride": self.stride}
                yield from split_windows(parts, frame, **sizes, masked=self.is_masked)
            else:
                yield from self._read_rows(number, file, texts, waiting)

    def _read_documents(self, number: int, file: Any, waiting: deque[Scored]) -> Iterator[tuple[Ids, bool]]:
        predicts_first, document = self.is_masked or self._tokenizer.start_of_text is not None, -1
        for piece in split_into_pieces(file.records(), self._tokenizer):
            try:
                (tokens,) = encode_pieces([piece], self._tokenizer)
            except InputError as error:
                raise error.at(file.name) from None
            document += piece.starts
            words = len(piece.text.split()) - (not piece.starts and not piece.text[0].isspace())
            loss, ends = self._offsets.round_trip_loss(piece, tokens), self._offsets.ends(piece, tokens)
            unscored = int(piece.starts and not predicts_first and len(tokens) > 0)
            waiting.append(Scored(number, document, piece.text, tokens, ends, piece.starts, words, loss, unscored))
            yield tokens, piece.starts

    def _read_rows(self, number: int, file: Any, texts: ScoredTexts, waiting: deque[Scored]) -> Iterator[Window]:
        """Yield examples, conversations or pairs as training reads them; see `lm.data.windows` and `lm.data.pairs`."""
        frames = self._pair_frames(file, texts) if texts.kind == "pairs" else None
        for index, record in enumerate(file.records()):
            try:
                row, window, parts = self._encode_row(record, frames)
            except InputError as error:
                raise error.at(f"{file.name}: line {record.line}") from None
            scored, starts = window.tokens[window.is_scored], bool(parts)
            for text, ends in parts or [("", [])]:
                tokens, scored = scored[: len(ends)], scored[len(ends) :]
                loss = self._offsets.round_trip_loss(Record.of_text(text), self._tokenizer.encode_batch([text])[0])
                waiting.append(
                    Scored(
                        number, index, text, tokens, np.array(ends, dtype=np.int64), starts, len(text.split()), loss,
                        record=record, is_shortened=len(window.tokens) < len(row),
                    )
                )  # fmt: skip
                starts = False
            if parts:
                yield window

    def _pair_frames(self, file: Any, texts: ScoredTexts) -> PairSpecialTokens:
        config, sources = self.loaded.config, self.loaded.source_tokenizer or self._tokenizer
        check_heads_given(config.model, are_given=file.heads is not None)
        tag = choose_language_tag(
            sources, texts.language, file_language=file.languages[1], has_tags=config.has_language_tags
        )
        return build_pair_frames(self._tokenizer, sources, tag=tag)

    def _encode_row(
        self, record: Record, frames: PairSpecialTokens | None
    ) -> tuple[Ids, Window, list[tuple[str, Sequence[int]]]]:
        """Return the tokens of a row, its window, and the texts that are scored with the ends of their tokens."""
        nothing = np.zeros(0, dtype=np.int64)
        nothing_scored = Window(nothing, nothing > 0)
        if record.is_blank:
            return nothing, nothing_scored, []
        (encoded,) = encode([record], (self._tokenizer, self.loaded.source_tokenizer))
        tokens, limit = encoded.tokens, self.model.config.position_limit
        if encoded.replies is not None:
            is_reply, parts = encoded.replies[: self.context + 1] >= 0, list[tuple[str, Sequence[int]]]()
            for is_scored, run in itertools.groupby(zip(is_reply, encoded.spelled, strict=False), key=itemgetter(0)):
                spelled = [text for _, text in run]
                if is_scored:
                    parts.append(("".join(spelled), np.cumsum([len(text.encode()) for text in spelled]).tolist()))
            return tokens, Window(tokens[: self.context + 1], is_reply), parts
        if frames:
            assert encoded.source_tokens is not None
            own, places = encoded.source_tokens, encoded.places
            own = own if places is None else attach_positions(own, places)
            source = wrap_sources(RaggedArray.from_rows([own]), frames.source)
            tokens = frames.target.wrap(tokens)
            window = Window(tokens, np.ones(len(tokens), dtype=bool), source.values)
            length = int(self._layout.lengths(source.lengths(), np.array([len(tokens)]))[0])
            if limit is not None and length > limit:
                raise InputError(f"has {length:,} tokens, but the model's positions end at {limit:,}; leave it out")
        else:
            if encoded.learned > self.context:  # left out in training too
                return tokens, nothing_scored, []
            within = truncate_prompt(tokens, context=self.context)
            window = Window(within, np.arange(len(within)) >= len(within) - encoded.learned)
        text, body = record.parts[-1].text, window.tokens[window.is_scored][:-1]
        return tokens, window, [(text, [*self._offsets.ends(Record.of_text(text), body).tolist(), len(text.encode())])]

    @torch.inference_mode()
    def score_windows(self, windows: Sequence[Window]) -> list[Nats]:
        """Return (scored tokens,) nats of each window, of an ensemble by the mean probability of each token."""
        scored = [self._score_windows(member, windows) for member in self.model.members]
        if not all(np.isfinite(nats).all() for nats in itertools.chain(*scored)):
            raise nan_logits_error()
        return [average_surprisals(nats) for nats in zip(*scored, strict=True)]

    def _score_windows(self, model: Model, windows: Sequence[Window]) -> list[Nats]:
        if isinstance(model, EncoderOnly):
            return [self._score_masked(model, window) for window in windows]
        return score_batch(model, self._batch(model, windows))

    def _batch(self, model: DecoderOnly | EncoderDecoder, windows: Sequence[Window]) -> Batch:
        """Return windows as a training batch."""
        tokens = [window.tokens for window in windows]
        sources = [window.source for window in windows if window.source is not None]
        if not sources:
            return Batch.from_rows(tokens, [window.is_scored for window in windows])
        (start,) = build_text_frame(self._tokenizer).before
        sides = RaggedArray.from_rows(sources), RaggedArray.from_rows(tokens)
        return PairLayout(model.config.decoder_only).batch(*sides, start=start)

    def _learn(self, windows: Sequence[Window]) -> None:
        """Take a step on windows that have been scored: their gradients, divided by their running RMS.

        Source: Krause et al. 2018 (dynamic evaluation), who measure the RMS on the training data.
        """
        for model in self.model.members:
            states, targets = _target_states(model, self._batch(model, windows))
            weight, bias = model.output_layer
            loss, _ = linear_cross_entropy(states, weight, targets, bias=bias, softcap=model.config.softcap)
            (loss / len(targets)).backward()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _score_masked(self, model: EncoderOnly, window: Window) -> Nats:
        """Mask each token in a row of its own."""
        mask, scored = require_mask_token(self._tokenizer), []
        tokens = torch.from_numpy(window.tokens.astype(np.int64)).to(next(model.parameters()).device)
        for places in torch.from_numpy(np.flatnonzero(window.is_scored)).split(self.batch_size):
            masked, row = places.to(tokens.device), torch.arange(len(places), device=tokens.device)
            rows = tokens.repeat(len(places), 1)
            rows[row, masked] = mask
            scored.append(compute_surprisals(model, model.hidden(rows)[row, masked], tokens[masked]))
        return np.concatenate(scored)


@torch.inference_mode()
def score_batch(model: DecoderOnly | EncoderDecoder, batch: Batch) -> list[Nats]:
    """Compute the surprisal of the targets of a training batch.

    Logits are computed only for targets, a bounded number at a time.

    Args:
        model: in eval mode; an `EncoderDecoder` for a batch with a source.

    Returns:
        (targets,) nats of each row.
    """
    nats = compute_surprisals(model, *_target_states(model, batch))
    return np.split(nats, np.cumsum((batch.targets != IGNORE_INDEX).sum(axis=1))[:-1])


def _target_states(model: DecoderOnly | EncoderDecoder, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (targets, d_model) final states of a batch, and (targets,) IDs."""
    is_target, device = batch.targets != IGNORE_INDEX, next(model.parameters()).device
    inputs, targets, positions = (torch.from_numpy(ids).to(device) for ids in (batch.inputs, batch.targets, is_target))
    if isinstance(model, EncoderDecoder):
        assert batch.source is not None
        assert batch.source_lengths is not None
        source, lengths = (torch.from_numpy(ids).to(device) for ids in (batch.source, batch.source_lengths))
        hidden = model.encode_decode(source, inputs, lengths=lengths)
    else:
        hidden = model.hidden(inputs)  # padding comes last, so nothing that counts sees it
    return hidden[positions], targets[positions]


def average_surprisals(nats: Sequence[Nats]) -> Nats:
    """Return (tokens,) nats by the mean probability of each token, given those of the members of an ensemble."""
    return math.log(len(nats)) - np.logaddexp.reduce(np.negative(nats))


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
