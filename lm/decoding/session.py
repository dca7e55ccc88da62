"""The decode session: rows of tokens that sampling, beam search and speculative decoding extend."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lm.decoding.candidates import top_k_tokens
from lm.engine.engine import LAST_LOGITS, NO_OUTPUT, EngineOutput, KVCache, OutputSpec
from lm.engine.pytorch import SequenceKVCache, SharedPrefix
from lm.engine.selection import EnginePlan, Operation
from lm.kernels.torch_ops import TopK

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


@dataclass(frozen=True, slots=True)
class StepOutput:
    """The output for the rows of a session.

    Attributes:
        logits: (rows, logits_to_keep, vocabulary) float32, of an ensemble log-probabilities; None if not requested.
        attention: of each model, (rows, source length) attention weights, if requested.
    """

    logits: Tensor | None = None
    top_k: TopK | None = None
    attention: Sequence[Tensor] = ()

    @property
    def last_logits(self) -> Tensor:
        """(rows, vocabulary) logits after the last token of each row."""
        assert self.logits is not None, "no logits were requested"
        return self.logits[:, -1]


class DecodeSession:
    """Rows of tokens, continued by one model or an ensemble: add, extend, select, truncate and release them.

    Rows are numbered from 0 in order. The session keeps their token IDs: a sequence that outgrows the context is
    prefilled again from its last half, and so is what no cache holds. The models of an ensemble share the target
    vocabulary, and their probabilities are averaged.

    Source: of the averaging, Sutskever et al. 2014, section 3.6.
    """

    def __init__(self, *plans: EnginePlan) -> None:
        """Create a session without rows; an engine plan for each model."""
        self.tokens: list[list[int]] = []
        self._models = [_ModelRows(plan, self.tokens) for plan in plans]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_compiled(self) -> bool:
        return any(model.plan.is_compiled for model in self._models)

    @property
    def removes_rows_for_free(self) -> bool:
        """Whether rows can be removed, to any number of rows, at no cost.

        Else it costs about as much as a step, and oneDNN takes some milliseconds to prepare a matmul of a new shape.
        """
        return all(model.cache is not None and model.cache.removes_rows_for_free for model in self._models)

    @torch.inference_mode()
    def prefill_prefix(self, prefix: Sequence[int]) -> None:
        """Prefill a prefix that many of the rows to come start with."""
        for model in self._models:
            model.prefill_prefix(prefix)

    def share_prefix(self, prefix: SharedPrefix | None) -> None:
        """Let rows to come start with a computed prefix, if their window does; only with one model."""
        (model,) = self._models
        if isinstance(model.cache, SequenceKVCache):
            model.cache.share_prefix(prefix)

    @torch.inference_mode()
    def add(
        self,
        prompts: Sequence[Sequence[int]],
        sources: Sequence[SourceBatch] | None = None,
        output_spec: OutputSpec = LAST_LOGITS,
    ) -> StepOutput:
        """Append rows, and prefill their prompts.

        Args:
            prompts: IDs, at least one each; of equal length if there are sources.
            sources: for each model the sources, one per row; only once.

        Returns:
            The output for the new rows.
        """
        first = len(self.tokens)
        self.tokens += [list(prompt) for prompt in prompts]
        new = range(first, len(self.tokens))
        for index, model in enumerate(self._models):
            model.add(len(prompts), None if sources is None else sources[index])
        tokens = None if sources is None else torch.tensor([[*prompt] for prompt in prompts])
        return self._read(new, tokens, _with_attention_of(output_spec, max(map(len, prompts))))

    @torch.inference_mode()
    def extend(self, tokens: Tensor, output_spec: OutputSpec = LAST_LOGITS) -> StepOutput:
        """Append (rows, n) tokens on any device, n at least 1; return the output for all rows."""
        for row, ids in zip(self.tokens, tokens.tolist(), strict=True):
            row.extend(ids)
        rows = range(len(self))
        if output_spec.logits_to_keep <= 1:
            return self._read(rows, tokens, _with_attention_of(output_spec, tokens.shape[1]))
        logits, n_left = [], tokens.shape[1]
        while n_left > (window_size := min(model.max_tokens_in_window(n_left) for model in self._models)):
            first, tokens = tokens.split((window_size, n_left - window_size), 1)
            n_left -= window_size
            logits.append(self._read(rows, first, OutputSpec(logits_to_keep=window_size), held_back=n_left).logits)
        output = self._read(
            rows,
            tokens,
            _with_attention_of(replace(output_spec, logits_to_keep=min(output_spec.logits_to_keep, n_left)), n_left),
        )
        if not logits:
            return output
        joined = torch.cat([part for part in (*logits, output.logits) if part is not None], dim=1)
        return StepOutput(joined[:, -output_spec.logits_to_keep :], output.top_k, output.attention)

    def _read(
        self, rows: Sequence[int], tokens: Tensor | None, output_spec: OutputSpec, held_back: int = 0
    ) -> StepOutput:
        """Run the models on the unread tokens of some rows.

        Args:
            tokens: (rows, n) the last tokens, which are all unread tokens of cached rows; None if no row is cached.
            held_back: last tokens of the rows that are left for later.
        """
        model_spec = replace(output_spec, top_k=0) if output_spec.top_k and len(self._models) > 1 else output_spec
        outputs = [model.read(rows, tokens, model_spec, held_back) for model in self._models]
        attention = [output.attention for output in outputs if output.attention is not None]
        logits, best = outputs[0].logits, outputs[0].top_k
        if len(outputs) > 1:
            parts = [output.logits.log_softmax(-1) for output in outputs if output.logits is not None]
            size = min((part.shape[-1] for part in parts), default=0)  # some vocabularies are padded
            if parts:
                logits = torch.stack([part[..., :size] for part in parts]).logsumexp(0) - math.log(len(parts))
        if output_spec.top_k and best is None and logits is not None:
            best = top_k_tokens(logits[:, -1], logits[:, -1], output_spec.top_k, by_compiled_code=self.is_compiled)
        return StepOutput(logits, best, attention)

    @torch.inference_mode()
    def select(self, rows: Sequence[int]) -> None:
        """Row i becomes the former row `rows[i]`; rows may be left out, or repeated, and then share their past."""
        self.tokens[:] = [list(self.tokens[row]) for row in rows]
        for model in self._models:
            model.select(rows)

    @torch.inference_mode()
    def release(self, rows: Collection[int]) -> None:
        """Remove rows; the others keep their order, and the freed cache rows are reused."""
        removed = set(rows)
        self.tokens[:] = [tokens for row, tokens in enumerate(self.tokens) if row not in removed]
        for model in self._models:
            model.release(removed)

    @torch.inference_mode()
    def truncate(self, lengths: Sequence[int]) -> None:
        """Truncate each row to a length."""
        for tokens, length in zip(self.tokens, lengths, strict=True):
            del tokens[length:]
        for model in self._models:
            model.truncate()


class _ModelRows:
    """The rows of a session as one model sees them: cache, sources and attention windows."""

    def __init__(self, plan: EnginePlan, tokens: list[list[int]]) -> None:
        """Create a session's rows of a model; `tokens` are the session's, which it changes in place."""
        config = plan.model.config
        self.plan, self._tokens = plan, tokens
        self.cache: KVCache | None = None if config.is_encoder_decoder else plan.pytorch.new_cache(plan.layout)
        self._context = None if config.translates else config.context_length
        self._sources: list[list[int]] = []  # of each row, for a decoder-only model that translates
        self._window_starts: list[int] = []  # of the cached window of each row

    def prefill_prefix(self, prefix: Sequence[int]) -> None:
        fits = self._context is not None and len(prefix) < self._context
        if isinstance(self.cache, SequenceKVCache):
            self.cache.prefill_prefix(self.plan.model, prefix if fits else ())  # type: ignore[arg-type]

    def add(self, rows: int, source: SourceBatch | None) -> None:
        self._window_starts += [0] * rows
        if self.cache is None:
            assert source is not None, "an encoder needs sources"
            self.cache, self._sources = self.plan.pytorch.new_cache(self.plan.layout, *source), [[]] * rows
            return
        self.cache.add(rows)
        if source is None:
            self._sources += [[]] * rows
            return
        ids, lengths = source[0], source[1].tolist()
        self._sources = [row[:length] for row, length in zip(ids.tolist(), lengths, strict=True)]
        if self.plan.layout == "tree":
            self.plan.pytorch.forward(ids, range(rows), [0] * rows, self.cache, NO_OUTPUT, lengths=lengths)

    def max_tokens_in_window(self, n: int) -> int:
        """Return how many of the last `n` tokens of all rows fit into one window each."""
        if self._context is None:
            return n
        before = [len(tokens) - n for tokens in self._tokens]
        return min(n, *(window_start(length + 1, self._context) + self._context - length for length in before))

    def _window(self, row: int, held_back: int) -> list[int]:
        """The visible tokens of a row, without the last `held_back`."""
        tokens = self._sources[row] + self._tokens[row]
        return tokens[self._window_starts[row] : len(tokens) - held_back]

    def read(self, rows: Sequence[int], tokens: Tensor | None, output_spec: OutputSpec, held_back: int) -> EngineOutput:
        """See `DecodeSession._read`: a step for cached rows, a prefill for the others."""
        assert self.cache is not None
        if self._context is not None:
            for row in rows:
                start = window_start(len(self._tokens[row]) - held_back, self._context)
                if start != self._window_starts[row]:
                    self._window_starts[row] = start
                    self.cache.clear([row])
        uncached = [row for row in rows if self.cache.needs_prefill(row)]
        if len(uncached) == len(rows):
            return self._prefill(uncached, output_spec, held_back)
        assert tokens is not None
        if not uncached:
            return self._step(rows, tokens, output_spec)
        assert not output_spec.attention
        cached = [row for row in rows if not self.cache.needs_prefill(row)]
        cached_tokens = tokens[[index for index, row in enumerate(rows) if not self.cache.needs_prefill(row)]]
        parts = [
            self._step(cached, cached_tokens, OutputSpec(output_spec.logits_to_keep)),
            self._prefill(uncached, output_spec, held_back),
        ]
        number = {row: index for index, row in enumerate([*cached, *uncached])}
        logits = [part.logits for part in parts if part.logits is not None]
        return EngineOutput(torch.cat(logits)[[number[row] for row in rows]] if logits else None)

    def _step(self, rows: Sequence[int], tokens: Tensor, output_spec: OutputSpec) -> EngineOutput:
        assert self.cache is not None
        positions = [self.cache.lengths[row] for row in rows]
        engine = self.plan.engine(self._operation(positions, tokens.shape[1], output_spec), tokens.numel())
        return engine.forward(tokens, rows, positions, self.cache, output_spec)

    def _operation(self, positions: Sequence[int], n: int, output_spec: OutputSpec) -> Operation:
        if output_spec.attention:
            return "attention"
        if not positions[0]:
            return "prefill"
        is_beyond = self._context is None and max(positions) + n > self.plan.model.config.context_length
        return "beyond_context" if is_beyond else "step" if n == 1 else "verify"

    def _prefill(self, rows: Sequence[int], output_spec: OutputSpec, held_back: int) -> EngineOutput:
        """Prefill the windows of rows; equal ones once."""
        assert self.cache is not None
        windows = [self._window(row, held_back) for row in rows]
        forward, cache = self.plan.pytorch.forward, self.cache
        if not isinstance(cache, SequenceKVCache) or self._context is None:
            ids, lengths = _pad(windows)
            return forward(ids, rows, [0] * len(rows), cache, output_spec, lengths=lengths)
        rows_of_window: dict[tuple[int, ...], list[int]] = {}
        for row, ids_of_row in zip(rows, windows, strict=True):
            rows_of_window.setdefault(tuple(ids_of_row), []).append(row)
        logits: dict[int, Tensor] = {}
        for group in self._group_windows(list(rows_of_window), cache.prefix):
            shared = _shared_prefix_length(group[0], cache.prefix)
            ids, lengths = _pad([window[shared:] for window in group])
            firsts = [rows_of_window[window][0] for window in group]
            window_logits = forward(ids, firsts, [shared] * len(group), cache, output_spec, lengths=lengths).logits
            if window_logits is not None:
                logits |= {
                    row: window_logits[index] for index, window in enumerate(group) for row in rows_of_window[window]
                }
            copied = [(row, rows_of_window[window][0]) for window in group for row in rows_of_window[window][1:]]
            if copied:
                cache.copy(*map(list, zip(*copied, strict=True)))
        return EngineOutput(torch.stack([logits[row] for row in rows]) if logits else None)

    def _group_windows(
        self, windows: Sequence[tuple[int, ...]], prefix: tuple[int, ...]
    ) -> Iterator[list[tuple[int, ...]]]:
        """Batches of windows of similar length, for recurrent layers of equal length."""
        group: list[tuple[int, ...]] = []
        for window in sorted(windows, key=lambda window: (_shared_prefix_length(window, prefix), len(window))):
            is_full = (len(group) + 1) * len(window) > _MAX_PREFILL_TOKENS
            differs_in_prefix = group and _shared_prefix_length(window, prefix) != _shared_prefix_length(
                group[0], prefix
            )
            differs_in_length = self.plan.model.config.is_recurrent and group and len(window) != len(group[0])
            if group and (is_full or differs_in_prefix or differs_in_length):
                yield group
                group = []
            group.append(window)
        yield group

    def select(self, rows: Sequence[int]) -> None:
        assert self.cache is not None
        self._window_starts, self._sources = (
            [self._window_starts[row] for row in rows],
            [self._sources[row] for row in rows],
        )
        self.cache.select(rows)

    def release(self, removed: Collection[int]) -> None:
        assert self.cache is not None
        remaining = [row for row in range(len(self._window_starts)) if row not in removed]
        self._window_starts, self._sources = (
            [self._window_starts[row] for row in remaining],
            [self._sources[row] for row in remaining],
        )
        self.cache.release(removed)

    def truncate(self) -> None:
        assert self.cache is not None
        self.cache.truncate([
            max(0, len(source) + len(tokens) - start)
            for source, tokens, start in zip(self._sources, self._tokens, self._window_starts, strict=True)
        ])  # fmt: skip


def _with_attention_of(output_spec: OutputSpec, n: int) -> OutputSpec:
    """The same spec; if attention is requested, that of `n` tokens."""
    return replace(output_spec, attention=n) if output_spec.attention else output_spec


def _pad(windows: Sequence[Sequence[int]]) -> tuple[Tensor, list[int]]:
    """(windows, longest) IDs, padded on the right, and their lengths."""
    lengths = list(map(len, windows))
    longest = max(lengths)
    return torch.tensor([[*window, *[0] * (longest - len(window))] for window in windows]), lengths


def _shared_prefix_length(window: tuple[int, ...], prefix: tuple[int, ...]) -> int:
    """The length of the prefix if a window starts with it, else 0."""
    length = len(prefix)
    return length if len(window) > length and window[:length] == prefix else 0
