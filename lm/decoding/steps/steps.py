"""What decoders see of a model: feed tokens, get logits; rows can be reordered and the end taken back."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from lm.decoding.steps.static_step import static_logits
from lm.engine.compiled.reading import Reading
from lm.engine.selection import native_decoder
from lm.kernels.tensors import Best
from lm.model.cache import DecoderCache, RecurrentCache
from lm.model.transformer import DecoderOnly


class Steps(Protocol):
    """Sequences that grow row by row alike; sampling, beam search, speculation and scoring need nothing else."""

    @property
    def length(self) -> int:
        """Tokens in each row: fed so far, less those taken back."""

    @property
    def leaves_freely(self) -> bool:
        """Whether it costs nothing that rows leave, whatever number stays, as it does where nothing moves.

        Else moving costs about as much as a step, and a product of new size takes oneDNN some milliseconds to prepare.
        """

    def feed(self, tokens: Tensor, *, last_only: bool = False) -> Tensor:
        """Append tokens to every row.

        Args:
            tokens: (rows, n) ids, on any device; n is at least 1. The first call decides how many rows there are.
            last_only: only the logits after the last token are wanted.

        Returns:
            (rows, n, vocabulary) float32 logits of the token that follows each of these, or (rows, 1, vocabulary).
        """

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was; rows may be repeated or left out."""

    def truncate(self, length: int) -> None:
        """Take back all tokens but the first `length`."""


@runtime_checkable
class FindsBest(Protocol):
    """Steps that can find the best tokens to follow without keeping all logits, of which there are many in a beam."""

    def feed_for_best(self, tokens: Tensor, k: int) -> Best | None:
        """Append (rows, 1) tokens and find the `k` best to follow.

        None, and nothing is appended, where `feed` is to be called.
        """


def window_start(length: int, context_length: int) -> int:
    """Where the window of the last of `length` tokens begins.

    A sequence that outgrows the context goes on from its last half, read again from position 0 on. Where that happens
    depends on the length alone, so logits do not depend on how many tokens were fed at a time.
    """
    advance = context_length - context_length // 2
    return -(-max(0, length - context_length) // advance) * advance


def _reading(tokens: Tensor, cache: DecoderCache) -> Reading:
    """What the compiled step is to read of (rows, n) tokens, which are in the cache then."""
    rows, n = tokens.shape
    begin = cache.length
    for layer in cache.own:
        layer.grow(n)
    of_rows, positions = torch.arange(rows)[:, None].expand(rows, n), torch.arange(begin, begin + n).expand(rows, n)
    return Reading(tokens.flatten(), of_rows.flatten(), positions.flatten(), cache.own)


def _stepped(model: DecoderOnly, tokens: Tensor, cache: DecoderCache) -> Tensor | None:
    """(rows, 1, vocabulary) logits of what follows (rows, 1) tokens, which the cache has then, by `static_logits`."""
    logits = static_logits(model, tokens[:, 0], torch.full((len(tokens),), cache.length), cache)
    if logits is None:
        return None
    for layer in cache.own:
        layer.grow(1)
    return logits[:, None]


class DecoderSteps:
    """Steps of a decoder-only model, with a key/value cache or, as the reference, reading all again each time."""

    leaves_freely = False

    def __init__(self, model: DecoderOnly, *, cached: bool = True) -> None:
        self._model = model
        self._context = model.config.context_length
        self._device = next(model.parameters()).device
        self._tokens: Tensor | None = None  # (rows, length)
        self._cache: DecoderCache | RecurrentCache | None = model.new_cache() if cached else None
        self._start = 0  # of the window that the cache holds

    @property
    def length(self) -> int:
        """Tokens in each row."""
        return 0 if self._tokens is None else self._tokens.shape[1]

    @torch.inference_mode()
    def feed(self, tokens: Tensor, *, last_only: bool = False) -> Tensor:
        """Append (rows, n) tokens; see `Steps.feed`."""
        position = self.length
        tokens = tokens.to(self._device)
        self._tokens = tokens if self._tokens is None else torch.cat((self._tokens, tokens), dim=1)
        if last_only:
            position = max(position, self.length - 1)
        logits = []
        while position < self.length:
            start = window_start(position + 1, self._context)
            end = min(start + self._context, self.length)
            logits.append(self._logits(start, position, end))
            position = end
        return logits[0] if len(logits) == 1 else torch.cat(logits, dim=1)

    def _logits(self, start: int, position: int, end: int) -> Tensor:
        """Logits of what follows each token from `position` to `end`, of the window from `start` on."""
        assert self._tokens is not None
        if isinstance(self._cache, DecoderCache) and start == self._start and 0 < self._cache.length < end - start:
            unread = self._tokens[:, start + self._cache.length : end]
            native = native_decoder(self._model, tokens=unread.numel())
            if native is not None:
                logits = native.logits(_reading(unread, self._cache))
                return logits.view(*unread.shape, -1)[:, position - end :]
            if unread.shape[1] == 1 and (found := _stepped(self._model, unread, self._cache)) is not None:
                return found
        return self._model.logits(self._hidden(start, end)[:, position - end :]).float()

    def _hidden(self, start: int, end: int) -> Tensor:
        """Final states of the window from `start` to `end`, at least of those of its tokens that were not read yet."""
        assert self._tokens is not None
        if self._cache is None:
            return self._model.hidden(self._tokens[:, start:end])
        if start != self._start:
            self._cache, self._start = self._model.new_cache(), start
        return self._model.hidden(self._tokens[:, start + self._cache.length : end], cache=self._cache)

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was."""
        rows = rows.to(self._device)
        if self._tokens is not None:
            self._tokens = self._tokens.index_select(0, rows)
        if self._cache is not None:
            self._cache.reorder(rows)

    def truncate(self, length: int) -> None:
        """Take back all tokens but the first `length`."""
        if self._tokens is not None:
            self._tokens = self._tokens[:, :length]
        if self._cache is not None:
            self._cache.truncate(max(0, length - self._start))
