"""Decoding: the decode session, rows of tokens that sampling, beam search and speculative decoding extend.

`DecodeSession` is all that the rest uses of engines and KV caches. Continue with `sampling` (filters and `Sampler`),
`batching` (the loop that samples) and `beam_search`. `generator`, `chat`, `translation` and `classifier` are what
commands and the API use. Nothing here imports evaluation or training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from lm.corpus import RaggedArray
from lm.data import length_batches
from lm.engine import LAST_LOGITS, NO_OUTPUT, EnginePlan, Output, OutputSpec
from lm.engine.kv_cache import KVCache, PrefixCache
from lm.errors import nan_logits_error
from lm.model import average_predictions

_MAX_PREFILL_TOKENS = 4096
"""Tokens per prefill batch, padding included."""

SourceBatch = tuple[Tensor, Tensor]
"""(sources, length) IDs, or (sources, length, 4) with dependency trees, padded on the right; and (sources,) lengths."""


def window_start(length: int, context_length: int) -> int:
    """Return where the attention window of the last of `length` tokens starts.

    A sequence that outgrows the context continues from its last half, which is prefilled again from position 0. Where
    that happens depends on the length alone, so logits don't depend on how many tokens are fed at a time.
    """
    advance = context_length - context_length // 2
    return -(-max(0, length - context_length) // advance) * advance


class DecodeSession:
    """Rows of tokens, continued by one model or an ensemble: add, extend, select and truncate them.

    Rows are numbered from 0 in order. The session keeps their token IDs: a sequence that outgrows the context is
    prefilled again from its last half, and so is what no cache holds.
    """

    def __init__(self, plan: EnginePlan, *, prefixes: PrefixCache | None = None) -> None:
        """Create a session without rows; they start with prefixes if they can."""
        self.tokens: list[list[int]] = []
        self.is_compiled = plan.is_compiled
        plans = (plan, *plan.ensemble)
        known = (prefixes, *prefixes.ensemble) if prefixes else (None,) * len(plans)
        self._models = [_ModelRows(each, self.tokens, own) for each, own in zip(plans, known, strict=True)]

    def __len__(self) -> int:
        return len(self.tokens)

    @torch.inference_mode()
    def add(
        self,
        prompts: Sequence[Sequence[int]],
        sources: SourceBatch | None = None,
        output_spec: OutputSpec = LAST_LOGITS,
    ) -> Output:
        """Append rows, and prefill their prompts.

        Args:
            prompts: IDs, at least one each; of equal length if there are sources.
            sources: one per row; only once.

        Returns:
            The output for the new rows.
        """
        first = len(self.tokens)
        self.tokens += [list(prompt) for prompt in prompts]
        for model in self._models:
            model.add(len(prompts), sources)
        tokens = None if sources is None else torch.tensor([[*prompt] for prompt in prompts])
        return self._forward(range(first, len(self.tokens)), tokens, output_spec)

    @torch.inference_mode()
    def extend(self, tokens: Tensor, output_spec: OutputSpec = LAST_LOGITS) -> Output:
        """Append (rows, n) tokens on any device, n at least 1; return the output for all rows."""
        n, kept = tokens.shape[1], output_spec.logits_to_keep
        fits = n if kept <= 1 else min(model.max_tokens_in_window(n) for model in self._models)
        if fits < n:  # logits of several windows
            outputs = [self.extend(part, OutputSpec(part.shape[1])) for part in tokens.tensor_split((fits,), 1)]
            joined = torch.cat([output.logits for output in outputs if output.logits is not None], dim=1)
            return Output(joined[:, -kept:])
        for row, ids in zip(self.tokens, tokens.tolist(), strict=True):
            row.extend(ids)
        return self._forward(range(len(self)), tokens, output_spec)

    def _forward(self, rows: Sequence[int], tokens: Tensor | None, output_spec: OutputSpec) -> Output:
        """Run the models on the last tokens of rows, (rows, n), of which cached rows have no others unread."""
        if len(self._models) == 1:
            return self._models[0].forward(rows, tokens, output_spec)
        spec = OutputSpec(output_spec.logits_to_keep)
        outputs = [model.forward(rows, tokens, spec).logits for model in self._models]
        return Output(average_predictions([logits for logits in outputs if logits is not None]))

    @torch.inference_mode()
    def select(self, rows: Sequence[int]) -> None:
        """Row i becomes the former row `rows[i]`; rows may be left out, or repeated, and then share their past."""
        self.tokens[:] = [list(self.tokens[row]) for row in rows]
        for model in self._models:
            model.select(rows)

    @torch.inference_mode()
    def truncate(self, lengths: Sequence[int]) -> None:
        """Truncate each row to a length."""
        for tokens, length in zip(self.tokens, lengths, strict=True):
            del tokens[length:]
        for model in self._models:
            model.truncate()


class _ModelRows:
    """The rows of a session as one model sees them: cache, sources and attention windows."""

    def __init__(self, plan: EnginePlan, tokens: list[list[int]], prefixes: PrefixCache | None) -> None:
        """Create a session's rows of a model; `tokens` are the session's, which it changes in place."""
        config = plan.model.config
        self.plan, self._tokens = plan, tokens
        self._prefixes = prefixes if plan.use_cache else None
        self.cache: KVCache  # of an encoder-decoder from the first rows on
        if not config.is_encoder_decoder:
            self.cache = KVCache(plan.model, is_enabled=plan.use_cache)
        self._context = None if config.translates else config.context_length
        self._sources: list[list[int]] = []  # of each row, for a decoder-only model that translates
        self._window_starts: list[int] = []  # of the cached window of each row

    def add(self, rows: int, source: SourceBatch | None) -> None:
        self._window_starts += [0] * rows
        sources: list[list[int]] = [[]] * rows
        if self.plan.model.config.is_encoder_decoder:
            assert source is not None, "an encoder needs sources"
            self.cache = KVCache(
                self.plan.model, is_enabled=self.plan.use_cache, source=source[0], source_lengths=source[1]
            )
        else:
            self.cache.add(rows)
            if source is not None:
                ids, lengths = source[0], source[1].tolist()
                sources = [row[:length] for row, length in zip(ids.tolist(), lengths, strict=True)]
                if self.plan.use_cache and not self.plan.model.config.is_recurrent:
                    self.plan.pytorch.forward(ids, range(rows), (), self.cache, NO_OUTPUT, lengths=lengths)
        self._sources += sources

    def max_tokens_in_window(self, n: int) -> int:
        """Return how many of the next `n` tokens of all rows fit into one window each."""
        if self._context is None:
            return n
        lengths = map(len, self._tokens)
        return min(n, *(window_start(length + 1, self._context) + self._context - length for length in lengths))

    def forward(self, rows: Sequence[int], tokens: Tensor | None, output_spec: OutputSpec) -> Output:
        """See `DecodeSession._forward`: a step for cached rows, a prefill for the others."""
        if self._context is not None:
            for row in rows:
                start = window_start(len(self._tokens[row]), self._context)
                if start != self._window_starts[row]:
                    self._window_starts[row] = start
                    self.cache.clear(row)
        empty = [index for index, row in enumerate(rows) if self.cache.needs_prefill(row)]
        if len(empty) == len(rows):
            return self._prefill(rows, output_spec)
        assert tokens is not None
        if not empty:
            return self._step(rows, tokens, output_spec)
        cached = [index for index in range(len(rows)) if index not in empty]
        spec = OutputSpec(output_spec.logits_to_keep)
        parts = [
            self._step([rows[index] for index in cached], tokens[cached], spec),
            self._prefill([rows[index] for index in empty], spec),
        ]
        order = torch.tensor([*cached, *empty]).argsort()
        logits = torch.cat([part.logits for part in parts if part.logits is not None])
        return Output(logits[order.to(logits.device)])

    def _step(self, rows: Sequence[int], tokens: Tensor, output_spec: OutputSpec) -> Output:
        positions = [self.cache.lengths[row] for row in rows]
        is_beyond = self._context is None and max(positions) + tokens.shape[1] > self.plan.model.config.context_length
        engine = self.plan.pytorch if is_beyond else self.plan.step_engine(tokens.numel())
        return engine.forward(tokens, rows, positions, self.cache, output_spec)

    def _prefill(self, rows: Sequence[int], output_spec: OutputSpec) -> Output:
        """Prefill the windows of empty rows; equal ones once, those with the same prefix and similar lengths together.

        With recurrent layers, those of equal length.
        """
        forward, cache = self.plan.pytorch.forward, self.cache
        windows = [tuple((self._sources[row] + self._tokens[row])[self._window_starts[row] :]) for row in rows]
        if self._context is None:
            ids, lengths = pad(windows)
            return forward(ids, rows, (), cache, output_spec, lengths=lengths.tolist())
        row_of = dict(zip(windows, rows, strict=True))
        is_recurrent, logits = self.plan.model.config.is_recurrent, dict[tuple[int, ...], Tensor]()
        kinds = {
            window: (self._prefixes.find(window) if self._prefixes else (), is_recurrent and len(window))
            for window in row_of
        }
        for (prefix, _), windows_of_kind in groupby(sorted(row_of, key=kinds.__getitem__), kinds.__getitem__):
            same = list(windows_of_kind)
            for batch in length_batches(list(map(len, same)), tokens=_MAX_PREFILL_TOKENS):
                group = [same[index] for index in batch]
                past = self._prefixes.copy(prefix, len(group)) if prefix and self._prefixes else None
                ids, lengths = pad([window[len(prefix) :] for window in group])
                of = [row_of[window] for window in group]
                output = forward(ids, of, (), cache, output_spec, lengths=lengths.tolist(), past=past)
                assert output.logits is not None
                logits |= zip(group, output.logits, strict=True)
        copies = [(row, row_of[window]) for row, window in zip(rows, windows, strict=True) if row != row_of[window]]
        if copies:
            cache.copy(*map(list, zip(*copies, strict=True)))
        return Output(torch.stack([logits[window] for window in windows]))

    def select(self, rows: Sequence[int]) -> None:
        self._window_starts = [self._window_starts[row] for row in rows]
        self._sources = [self._sources[row] for row in rows]
        self.cache.select(rows)

    def truncate(self) -> None:
        rows = zip(self._sources, self._tokens, self._window_starts, strict=True)
        self.cache.truncate([max(0, len(source) + len(tokens) - start) for source, tokens, start in rows])


def check_not_nan(value: float) -> None:
    """Raise InputError if a probability or log-probability is NaN."""
    if math.isnan(value):
        raise nan_logits_error()


def pad(rows: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """Return (rows, longest) IDs, or (rows, longest, 4) with trees, padded on the right; and (rows,) lengths."""
    ragged = RaggedArray.from_rows(rows)
    return torch.from_numpy(ragged.to_padded(0)), torch.from_numpy(ragged.lengths())
