"""The KV cache of rows of different lengths, and the cache of prompt prefixes that rows may start with."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm.model import DecoderOnly, EncoderDecoder
from lm.model.attention import AttentionInputs, DecoderCache, LayerKVCache, Mask
from lm.model.recurrent import RecurrentCache, RowRecurrentCache

DecoderModel = DecoderOnly | EncoderDecoder
ModelCache = DecoderCache | RecurrentCache

_MIN_SHARED = 32
"""Tokens that two prompts have to share for the prefix of one to be copied."""
_CONTEXTS = 4
"""Contexts' worth of tokens of prefixes that are kept."""


class PrefixCache:
    """The KV caches of the first tokens of prompts, which any number of rows may start with.

    They are kept up to a number of tokens; the least recently used ones are dropped.

    Attributes:
        ensemble: those of the other models of an ensemble.
    """

    def __init__(self, model: DecoderOnly) -> None:
        self._model, self._capacity = model, _CONTEXTS * model.config.context_length
        self._caches: dict[tuple[int, ...], ModelCache] = {}
        self.ensemble = tuple(map(PrefixCache, model.members[1:]))

    @torch.inference_mode()
    def extend(self, ids: Sequence[int], limit: int | None = None) -> tuple[int, int]:
        """Compute a prefix, starting with what it has in common with another.

        Args:
            limit: the most tokens to compute now.

        Returns:
            The number of its tokens that were known, and of those that were computed.
        """
        ids = tuple(ids)
        for other in self.ensemble:
            other.extend(ids, limit)
        if len(ids) >= self._model.config.context_length:
            return 0, 0
        known = max(self._caches, key=lambda other: self._usable_length(other, ids), default=())
        n_known = self._usable_length(known, ids)
        if n_known and n_known == len(known):
            cache = self._caches.pop(known)
        else:
            cache = self.copy(known, length=n_known) if n_known else self._model.new_cache()
        new = ids[n_known:][:limit]
        if new:
            self._model.hidden(torch.tensor([new], device=next(self._model.parameters()).device), cache=cache)
        self._caches[ids[: n_known + len(new)]] = cache
        while sum(map(len, self._caches)) > self._capacity and len(self._caches) > 1:
            del self._caches[next(iter(self._caches))]
        return n_known, len(new)

    def _usable_length(self, known: tuple[int, ...], ids: tuple[int, ...]) -> int:
        """Return how many tokens of a known prefix can be taken for other IDs: all, or its beginning if it is long."""
        pairs = enumerate(zip(known, ids, strict=False))
        common = next((index for index, (a, b) in pairs if a != b), min(len(known), len(ids)))
        can_truncate = not self._model.config.is_recurrent  # which has only the last state
        return common if common == len(known) or (common >= _MIN_SHARED and can_truncate) else 0

    def find(self, window: tuple[int, ...]) -> tuple[int, ...]:
        """Return the longest prefix that a window starts with, and continues; empty if there is none."""
        found = (ids for ids in self._caches if len(ids) < len(window) and window[: len(ids)] == ids)
        return max(found, key=len, default=())

    def copy(self, ids: tuple[int, ...], rows: int = 1, *, length: int | None = None) -> ModelCache:
        """Return a cache of some rows that all start with a prefix, or with its first positions."""
        known = self._caches[ids]
        if isinstance(known, RecurrentCache):
            states = copy.deepcopy(known)
            states.reorder(torch.zeros(rows, dtype=torch.long, device=next(self._model.parameters()).device))
            return states
        cache = DecoderCache([LayerKVCache() for _ in known.self_attention])
        for own, layer in zip(cache.self_attention, known.self_attention, strict=True):
            own.extend(*(part[:, :, :length].expand(rows, -1, -1, -1) for part in layer.keys_and_values()))
        return cache


class StepArrays(NamedTuple):
    """The inputs of a compiled decode step: tokens, possibly several per row, and the caches.

    Attributes:
        ids: (number,) tokens; those of a row one after the other.
        rows: (number,) the buffer row of each token.
        positions: (number,) of the tokens in their rows.
        shared: (rows, length) the buffer row of each position of the past that rows share; the rest is in their own.
        sources: (number,) the source of each token; empty without sources.
        source_lengths: (sources,) real positions.
        caches: (layers, 2) addresses of keys and values, each (rows, kv_heads, capacity, head) float32.
        capacity: positions per row.
        cross_caches: (layers, 2) addresses of those of the sources; (0, 2) without sources.
        source_capacity: positions per source.
    """

    ids: NDArray[np.int64]
    rows: NDArray[np.int64]
    positions: NDArray[np.int64]
    shared: NDArray[np.int64]
    sources: NDArray[np.int64]
    source_lengths: NDArray[np.int64]
    caches: NDArray[np.int64]
    capacity: int
    cross_caches: NDArray[np.int64]
    source_capacity: int


class KVCache:
    """A KV cache in which each row, of any length, has a row of the buffers, written in place.

    A released buffer row is reused by the next new row (continuous batching). Rows of equal length that are repeated or
    change places, as a beam's do, are not copied: a table says in which buffer row each position of their past is
    (cache indirection). Compiled code reads through the table; before PyTorch computes, rows are copied.

    Attributes:
        lengths: cached positions of each row.

    Source: Yu et al. 2022 (Orca), section 3.2 (iteration-level scheduling); the table is FasterTransformer's.
    """

    def __init__(
        self,
        model: DecoderModel,
        *,
        is_enabled: bool = True,
        source: Tensor | None = None,
        source_lengths: Tensor | None = None,
    ) -> None:
        """Create a cache without rows, or with one for each source of an encoder-decoder, which is encoded.

        Args:
            is_enabled: else nothing is cached and everything is recomputed: the reference, and compressed attention,
                whose keys cover several positions.
            source: (sources, length) IDs, or (sources, length, 4) with dependency trees.
            source_lengths: (sources,) real IDs.
        """
        config = model.config
        self._model, self._first_parameter, self._is_enabled = model, next(model.parameters()), is_enabled
        self.lengths: list[int] = []
        self._buffer_rows: list[int] = []  # of each row
        self._free_rows: list[int] = []  # a stack
        self._n_buffer_rows = 0
        self._shared: Tensor | None = None  # see `StepArrays`
        self._states = RowRecurrentCache() if config.is_recurrent else None
        n_layers = 0 if config.is_recurrent else config.n_layers
        self._layers = [_RowsLayer(config.context_length) for _ in range(n_layers)]
        self._cross_layers: Sequence[LayerKVCache] = ()
        self._encoder_output: Tensor | None = None
        self._source_lengths: Tensor | None = None
        self._sources: list[int] = []  # of each row
        if source is not None:
            assert isinstance(model, EncoderDecoder)
            device = self._first_parameter.device
            if source_lengths is not None and int(source_lengths.min()) < source.shape[1]:
                self._source_lengths = source_lengths.to(device)
            self._encoder_output = model.encode(source.to(device), lengths=self._source_lengths)
            self._sources = list(range(len(source)))
            self.add(len(source))

    def needs_prefill(self, row: int) -> bool:
        """Whether a row has no cached positions."""
        return not self._is_enabled or not self.lengths[row]

    def add(self, rows: int) -> None:
        """Add empty rows."""
        self._copy_shared()
        while len(self._free_rows) < rows:
            self._free_rows.insert(0, self._n_buffer_rows)
            self._n_buffer_rows += 1
        self._buffer_rows += [self._free_rows.pop() for _ in range(rows)]
        self.lengths += [0] * rows

    def prefill(
        self, tokens: Tensor, rows: Sequence[int], lengths: Sequence[int], past: ModelCache | None = None
    ) -> Tensor:
        """Compute (rows, n, d_model) final states of empty rows.

        Args:
            tokens: (rows, n) IDs.
            lengths: real tokens of each row; padding follows them.
            past: of the rows' common prefix; it becomes the caller's no more.
        """
        self._copy_shared()
        start, cache = 0 if past is None else past.length, past or self._model.new_cache()
        tokens, updated_cache = tokens.to(self._first_parameter.device), cache if self._is_enabled else None
        real_lengths = None if min(lengths) == tokens.shape[1] else self._index(lengths)
        source: dict[str, Tensor | None] = {}
        if self._encoder_output is not None:
            source = {"encoder_output": self._encoder_output, "lengths": self._source_lengths}
            cache.cross_attention = list(self._cross_layers) or cache.cross_attention
        hidden = self._model.hidden(tokens, cache=updated_cache, target_lengths=real_lengths, **source)  # type: ignore[arg-type]
        self._cross_layers = cache.cross_attention if self._is_enabled and source else ()
        if self._is_enabled:
            buffer_rows = self._index_of(rows)
            if isinstance(cache, RecurrentCache):
                assert self._states is not None
                self._states.write_rows(buffer_rows, cache)
            else:
                for layer, read in zip(self._layers, cache.self_attention, strict=True):
                    layer.write_rows(buffer_rows, *read.keys_and_values())
            for row, length in zip(rows, lengths, strict=True):
                self.lengths[row] = start + length
        return hidden

    def step(self, tokens: Tensor, rows: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Compute (rows, n, d_model) final states of the next tokens; free buffer rows take part with any tokens."""
        self._copy_shared()
        if 2 * len(rows) <= self._n_buffer_rows and len(rows) == len(self._buffer_rows):
            self._share(range(len(self.lengths)))
            self._copy_shared()
        n, at = tokens.shape[1], [self._buffer_rows[row] for row in rows]
        starts = [min(positions)] * self._n_buffer_rows
        is_whole = at == list(range(self._n_buffer_rows))
        batch = tokens
        if not is_whole:
            batch = tokens.new_zeros(self._n_buffer_rows, n)
            batch[at] = tokens
        for row, position in zip(at, positions, strict=True):
            starts[row] = position
        cross_inputs = None if self._encoder_output is None else AttentionInputs(
            Mask(key_lengths=self._source_lengths), encoder_output=self._encoder_output, caches=self._cross_layers
        )  # fmt: skip
        first = max(starts)
        end, device, is_even = first + n, self._first_parameter.device, min(starts) == first
        first_positions = self._index(starts)
        queries = None if is_even else first_positions[:, None] + torch.arange(n, device=device)
        for layer in self._layers:
            layer.set_write_positions(first if is_even else first_positions, end)
        mask, caches = Mask(is_causal=True), self._layers if self._states is None else [self._states]
        if queries is not None:
            bias = torch.zeros(len(queries), 1, n, end, dtype=self._first_parameter.dtype, device=device)
            is_later = torch.arange(end, device=device) > queries[:, None, :, None]
            mask = Mask(bias=bias.masked_fill_(is_later, -torch.inf))
        inputs = AttentionInputs(mask, caches=caches, start=first, query_positions=queries)
        hidden = self._model.decode(batch.to(device), inputs, cross_inputs)
        self._advance(rows, n)
        return hidden if is_whole else hidden.index_select(0, self._index(at))

    def prepare_step(self, tokens: Tensor, rows: Sequence[int], positions: Sequence[int]) -> StepArrays:
        """Return the inputs of a compiled step, and count its positions as cached."""
        n = tokens.shape[1]
        for layer in self._layers:
            layer.set_write_positions(0, max(positions) + n, rows=self._n_buffer_rows)
        self._advance(rows, n)
        buffer_rows, starts, nothing = self._index_of(rows), torch.tensor(positions), torch.empty(0, dtype=torch.long)
        sources, source_lengths = nothing, self._source_lengths
        if self._encoder_output is not None:
            sources = self._index([self._sources[row] for row in rows])
            if source_lengths is None:
                source_lengths = torch.full(self._encoder_output.shape[:1], self._encoder_output.shape[1])
        if n > 1:
            buffer_rows, sources = buffer_rows.repeat_interleave(n), sources.repeat_interleave(n)
            starts = (starts[:, None] + torch.arange(n)).flatten()
        shared = nothing.view(0, 0) if self._shared is None else self._shared
        lengths = nothing if source_lengths is None else source_lengths
        batch = (tokens.flatten(), buffer_rows, starts, shared, sources, lengths)
        arrays = [tensor.contiguous().numpy() for tensor in batch]
        return StepArrays(*arrays, *_addresses(self._layers), *_addresses(self._cross_layers))  # type: ignore[arg-type, call-arg]

    def _advance(self, rows: Sequence[int], n: int) -> None:
        for row in rows:
            self.lengths[row] += n

    def copy(self, rows: Sequence[int], others: Sequence[int]) -> None:
        """Rows become like others."""
        if not self._is_enabled:
            return
        to_rows, from_rows = self._index_of(rows), self._index_of(others)
        for layer in self._layers:
            layer.write_rows(to_rows, *(part.index_select(0, from_rows) for part in layer.keys_and_values()))
        if self._states is not None:
            self._states.copy(to_rows, from_rows)
        for row, other in zip(rows, others, strict=True):
            self.lengths[row] = self.lengths[other]

    def select(self, rows: Sequence[int]) -> None:
        """Row i becomes the former row `rows[i]`; rows may be repeated or left out."""
        if list(rows) == list(range(len(self.lengths))):
            return
        if self._encoder_output is None and self._shared is None and len({*rows}) == len(rows):
            buffer_rows = [self._buffer_rows[row] for row in rows]
            self._free_rows += {*self._buffer_rows} - {*buffer_rows}
            self._buffer_rows, self.lengths = buffer_rows, [self.lengths[row] for row in rows]
            return
        self._share(rows)
        if min(self.lengths, default=0) < max(self.lengths, default=1) or self._states is not None:
            self._copy_shared()  # a row must not write where others read

    def _share(self, rows: Sequence[int]) -> None:
        """Row i reads the past of the former row `rows[i]`, and writes into buffer row i."""
        own = self._index(self._buffer_rows)[:, None]
        past = own[:, :0] if self._shared is None else self._shared
        self.lengths = [self.lengths[row] for row in rows]
        length = max(self.lengths, default=0)
        past = torch.cat((past, own.expand(-1, max(0, length - past.shape[1]))), dim=1)
        self._shared = past[:, :length].index_select(0, self._index(rows))
        self._sources = [self._sources[row] for row in rows] if self._sources else []
        self._buffer_rows, self._free_rows = list(range(len(rows))), []
        self._n_buffer_rows = max(self._n_buffer_rows, len(rows))

    def _copy_shared(self) -> None:
        """Copy the past of rows that share it, and their sources: all of a row is in its buffer row then."""
        if self._shared is not None:
            self._share(range(len(self.lengths)))  # up to now
            table, self._shared, self._n_buffer_rows = self._shared, None, len(self.lengths)
            for layer in (*self._layers, self._states):
                if isinstance(layer, _RowsLayer) and table.shape[1] and not bool((table == table[:, :1]).all()):
                    layer.gather(table)
                elif layer is not None:
                    layer.reorder(table[:, 0] if table.shape[1] else self._index([0] * len(table)))
        if self._encoder_output is not None and self._sources != list(range(len(self._encoder_output))):
            index, self._sources = self._index(self._sources), list(range(len(self._sources)))
            self._encoder_output = self._encoder_output.index_select(0, index)
            if self._source_lengths is not None:
                self._source_lengths = self._source_lengths.index_select(0, index)
            for cross_layer in self._cross_layers:
                cross_layer.reorder(index)

    def truncate(self, lengths: Sequence[int]) -> None:
        """Truncate each row to a length; a row whose recurrent state of then is not kept becomes empty."""
        if self._shared is not None and min(lengths) < self._shared.shape[1]:
            self._copy_shared()
        for row, (cached_length, length) in enumerate(zip(self.lengths, lengths, strict=True)):
            self.lengths[row] = cached_length if cached_length <= length else 0 if self._states is not None else length

    def clear(self, row: int) -> None:
        """Empty a row."""
        self._copy_shared()
        self.lengths[row] = 0

    def _index_of(self, rows: Sequence[int]) -> Tensor:
        return self._index([self._buffer_rows[row] for row in rows])

    def _index(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self._first_parameter.device)


def _addresses(layers: Sequence[LayerKVCache]) -> tuple[NDArray[np.int64], int]:
    """(layers, 2) addresses of the keys and values of layers, and their capacity in positions."""
    buffers = [layer.buffers() for layer in layers]
    addresses = np.array([(keys.data_ptr(), values.data_ptr()) for keys, values in buffers], np.int64).reshape(-1, 2)
    return addresses, buffers[0][0].shape[2] if buffers else 0


class _RowsLayer(LayerKVCache):
    """Keys and values of one layer, with rows of different lengths.

    Beyond a row's length the buffers hold stale values, which a mask hides. They have to be finite, as 0 · NaN is NaN:
    a new row is zero there, whatever the one before has left.
    """

    def __init__(self, max_length: int) -> None:
        """Create a cache for rows of at most `max_length` positions."""
        super().__init__()
        self._max_length = max_length
        self._write_positions: Tensor | int = 0

    def write_rows(self, rows: Tensor, key: Tensor, value: Tensor) -> None:
        """Write (rows, kv_heads, length, head) keys and values at the start of some rows."""
        length = key.shape[2]
        self._key, self._value = (
            self._grow(buffer, like, int(rows.max()) + 1, length)
            for buffer, like in ((self._key, key), (self._value, value))
        )
        self.length = max(self.length, length)
        for buffer, new in ((self._key, key), (self._value, value)):
            buffer[rows, :, :length] = new
            buffer[rows, :, length:] = 0

    def set_write_positions(self, positions: Tensor | int, end: int, rows: int = 0) -> None:
        """Set where the next positions of each row are written, (rows,) or the same for all, all before `end`."""
        self._write_positions, self.length = positions, end
        self._key, self._value = (self._grow(buffer, buffer, max(rows, len(buffer)), end) for buffer in self.buffers())

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write (rows, kv_heads, n, head) keys and values, and return those of all positions."""
        at = self._write_positions
        for buffer, new in zip(self.buffers(), (key, value), strict=True):
            if isinstance(at, int):
                buffer[:, :, at : at + new.shape[2]] = new
            else:
                rows, n = (torch.arange(size, device=buffer.device) for size in (len(buffer), new.shape[2]))
                buffer[rows[:, None], :, at[:, None] + n] = new.transpose(1, 2)
        return self.keys_and_values()

    def gather(self, table: Tensor) -> None:
        """Row i becomes the positions of the buffer rows `table[i]`, of a (rows, length) table."""
        rows, length = table.shape
        _, heads, capacity, head = self.buffers()[0].shape
        every_head, positions = (torch.arange(size, device=table.device) for size in (heads, length))
        gathered = [buffer.new_zeros(rows, heads, capacity, head) for buffer in self.buffers()]
        for new, buffer in zip(gathered, self.buffers(), strict=True):
            new[:, :, :length] = buffer[table[:, None], every_head[:, None], positions]
        self._key, self._value = gathered

    def _grow(self, buffer: Tensor | None, like: Tensor, rows: int, length: int) -> Tensor:
        """Return a buffer of at least `rows` rows and `length` positions with the contents of the old one."""
        if buffer is None:
            return like.new_zeros(rows, like.shape[1], length, like.shape[3])
        n_rows, heads, capacity, head = buffer.shape
        if n_rows >= rows and capacity >= length:
            return buffer
        longer = capacity if capacity >= length else max(length, min(2 * capacity, self._max_length))
        grown = buffer.new_zeros(max(rows, n_rows), heads, longer, head)
        grown[:n_rows, :, :capacity] = buffer
        return grown
