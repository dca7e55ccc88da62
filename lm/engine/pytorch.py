"""The PyTorch engine, which runs every model and operation, and its per-sequence KV cache."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from lm.engine.engine import CompiledStepInputs, DecoderModel, EncodedSource, EngineOutput, KVCache, Layout, OutputSpec
from lm.engine.tree_cache import TreeKVCache
from lm.model.attention import capture_attention_weights
from lm.model.attention_inputs import AttentionInputs
from lm.model.kv_cache import DecoderCache, LayerKVCache
from lm.model.mask import Mask, padding_bias
from lm.model.transformer import DecoderOnly, EncoderDecoder
from lm.model.variants.recurrent import RecurrentCache, RecurrentInputs, RowRecurrentCache


class SequenceKVCache:
    """A contiguous KV cache: each sequence, of any length, has a buffer row of its own, written in place.

    A released buffer row is reused by the next new row (continuous batching). Rows may start with a shared prefix,
    which is computed once.

    Attributes:
        buffer_rows: the buffer row of each row.
        n_buffer_rows: all buffer rows, free ones included.

    Source: Yu et al. 2022 (Orca), section 3.2 (iteration-level scheduling).
    """

    removes_rows_for_free = False

    def __init__(self, model: DecoderModel, *, is_enabled: bool = True, source: EncodedSource | None = None) -> None:
        """Create a cache without rows, or with one for each source.

        Args:
            is_enabled: else nothing is cached and everything is recomputed: the reference, and compressed attention,
                whose keys cover several positions.
            source: the encoder output of the rows' sources.
        """
        config = model.config
        self._first_parameter, self._needs_key_positions = next(model.parameters()), config.needs_key_positions
        self._is_enabled, self._source = is_enabled, source
        self.lengths: list[int] = []
        self.buffer_rows: list[int] = []
        self._free_rows: list[int] = []  # a stack
        self.n_buffer_rows = 0
        self._prefix: SharedPrefix | None = None
        self._states = RowRecurrentCache() if config.is_recurrent else None
        self.layers = (
            [] if config.is_recurrent else [SequenceLayerKVCache(config.context_length) for _ in range(config.n_layers)]
        )
        if source is not None:
            self.add(len(source.output))

    def needs_prefill(self, row: int) -> bool:
        return not self._is_enabled or not self.lengths[row]

    def add(self, rows: int) -> None:
        missing = rows - len(self._free_rows)
        if missing > 0:
            self._free_rows = [*range(self.n_buffer_rows + missing - 1, self.n_buffer_rows - 1, -1), *self._free_rows]
            self.n_buffer_rows += missing
        self.buffer_rows += [self._free_rows.pop() for _ in range(rows)]
        self.lengths += [0] * rows

    @property
    def prefix(self) -> tuple[int, ...]:
        """IDs of the shared prefix; empty without one."""
        return () if self._prefix is None else self._prefix.ids

    def prefill_prefix(self, model: DecoderOnly, prefix: Sequence[int]) -> None:
        """Compute a prefix that rows to come start with; nothing if the cache is disabled."""
        prefix = tuple(prefix) if self._is_enabled else ()
        if prefix != self.prefix:
            self._prefix = None
            if prefix:
                self._prefix = SharedPrefix(model)
                self._prefix.extend(prefix)

    def share_prefix(self, prefix: SharedPrefix | None) -> None:
        """Let rows to come start with a computed prefix, if they do; nothing if the cache is disabled."""
        self._prefix = prefix if self._is_enabled and prefix is not None and prefix.ids else None

    def compute_hidden(
        self, model: DecoderModel, tokens: Tensor, rows: Sequence[int], positions: Sequence[int], lengths: Sequence[int]
    ) -> Tensor:
        if self.needs_prefill(rows[0]):
            return self._prefill(model, tokens, rows, positions, lengths)
        n = tokens.shape[1]
        batch, starts = self.pad_to_buffer_rows(tokens, rows, positions)
        inputs = self._attention_inputs(starts, n)
        hidden = model.decode(batch.to(self._first_parameter.device), inputs, self._cross_inputs())
        self.advance(rows, n)
        buffer_rows = self.buffer_rows_of(rows)
        return hidden if buffer_rows == list(range(len(hidden))) else hidden.index_select(0, self._index(buffer_rows))

    def _prefill(
        self, model: DecoderModel, tokens: Tensor, rows: Sequence[int], positions: Sequence[int], lengths: Sequence[int]
    ) -> Tensor:
        """Compute new rows, or their continuations of the prefix; padding after them is masked."""
        cache = model.new_cache()
        if positions[0]:
            assert self._prefix is not None
            cache = copy.deepcopy(self._prefix.cache)
            cache.reorder(self._index([0] * len(rows)))
        tokens, updated_cache = tokens.to(self._first_parameter.device), cache if self._is_enabled else None
        real_lengths = None if min(lengths) == tokens.shape[1] else self._index(lengths)
        if self._source is None:
            assert isinstance(model, DecoderOnly)
            hidden = model.hidden(tokens, cache=updated_cache, target_lengths=real_lengths)
        else:
            assert isinstance(model, EncoderDecoder)
            cache.cross_attention = list(self._source.layers) or cache.cross_attention
            hidden = model.hidden(
                tokens,
                encoder_output=self._source.output,
                lengths=self._source.lengths,
                cache=updated_cache,
                target_lengths=real_lengths,
            )
            self._source.layers = cache.cross_attention if self._is_enabled else ()
        if self._is_enabled:
            buffer_rows = self._index(self.buffer_rows_of(rows))
            if isinstance(cache, RecurrentCache):
                assert self._states is not None
                self._states.write_rows(buffer_rows, cache)
            else:
                for layer, read in zip(self.layers, cache.self_attention, strict=True):
                    layer.write_rows(buffer_rows, *read.keys_and_values())
            for row, position, length in zip(rows, positions, lengths, strict=True):
                self.lengths[row] = position + length
        return hidden

    def copy(self, rows: Sequence[int], others: Sequence[int]) -> None:
        if not self._is_enabled:
            return
        to_rows, from_rows = self._index(self.buffer_rows_of(rows)), self._index(self.buffer_rows_of(others))
        for layer in self.layers:
            layer.write_rows(to_rows, *(part.index_select(0, from_rows) for part in layer.keys_and_values()))
        if self._states is not None:
            self._states.copy(to_rows, from_rows)
        for row, other in zip(rows, others, strict=True):
            self.lengths[row] = self.lengths[other]

    def pad_to_buffer_rows(
        self, tokens: Tensor, rows: Sequence[int], positions: Sequence[int]
    ) -> tuple[Tensor, list[int]]:
        """Return (buffer rows, n) tokens, and the position of the first in each buffer row; free rows get any."""
        self._compact(rows)
        buffer_rows = self.buffer_rows_of(rows)
        if buffer_rows == list(range(self.n_buffer_rows)):
            return tokens, list(positions)
        batch = tokens.new_zeros(self.n_buffer_rows, tokens.shape[1])
        position_of = dict(zip(buffer_rows, positions, strict=True))
        batch[buffer_rows] = tokens
        min_position = min(positions)
        return batch, [position_of.get(row, min_position) for row in range(self.n_buffer_rows)]

    def prepare_step(self, tokens: Tensor, rows: Sequence[int], positions: Sequence[int]) -> CompiledStepInputs:
        n = tokens.shape[1]
        end = max(positions) + n
        self._compact(rows)
        self.reserve(end)
        self.advance(rows, n)
        buffer_rows, starts = torch.tensor(self.buffer_rows_of(rows)), torch.tensor(positions)
        if n > 1:
            buffer_rows, starts = buffer_rows.repeat_interleave(n), (starts[:, None] + torch.arange(n)).flatten()
        return CompiledStepInputs(tokens.flatten(), buffer_rows, starts, self.layers, end)

    def reserve(self, end: int) -> None:
        """Make room in the layers' buffers for positions before `end`."""
        for layer in self.layers:
            layer.set_write_positions(0, end)

    def advance(self, rows: Sequence[int], n: int) -> None:
        for row in rows:
            self.lengths[row] += n

    def _attention_inputs(self, starts: Sequence[int], n: int) -> AttentionInputs:
        first = max(starts)
        is_even = min(starts) == first
        if self._states is not None:
            at = (
                None if is_even else self._index(starts)[:, None] + torch.arange(n, device=self._first_parameter.device)
            )
            return RecurrentInputs(
                Mask.causal(), recurrent=self._states, start=first, query_positions=at, end=first + n
            )
        positions = first if is_even else self._index(starts)
        for layer in self.layers:
            layer.set_write_positions(positions, first + n)
        if isinstance(positions, int):
            return AttentionInputs(Mask.causal(), caches=self.layers, start=first)
        return row_attention_inputs(
            self.layers,
            positions,
            n,
            first + n,
            self._first_parameter.dtype,
            needs_key_positions=self._needs_key_positions,
        )

    def _cross_inputs(self) -> AttentionInputs | None:
        source = self._source
        if source is None:
            return None
        return AttentionInputs(
            mask=Mask.key_padding(source.lengths), encoder_output=source.output, caches=source.layers
        )

    def select(self, rows: Sequence[int]) -> None:
        """Row i becomes the former row `rows[i]`; rows may be repeated or left out. All are copied at once."""
        if list(rows) != list(range(len(self.buffer_rows))) or len(self.buffer_rows) < self.n_buffer_rows:
            self._gather_rows(self.buffer_rows_of(rows))
            self.lengths = [self.lengths[row] for row in rows]

    def release(self, rows: Collection[int]) -> None:
        """Remove rows; the others keep their order, and their buffer rows while more than half of these are in use."""
        removed = set(rows)
        self._free_rows += [buffer_row for row, buffer_row in enumerate(self.buffer_rows) if row in removed]
        self.buffer_rows = [buffer_row for row, buffer_row in enumerate(self.buffer_rows) if row not in removed]
        self.lengths = [length for row, length in enumerate(self.lengths) if row not in removed]

    def _compact(self, rows: Sequence[int]) -> None:
        """Drop the free buffer rows once they are half of all, if all rows take part in the step."""
        if 2 * len(rows) <= self.n_buffer_rows and len(rows) == len(self.buffer_rows):
            self._gather_rows(self.buffer_rows)

    def _gather_rows(self, buffer_rows: Sequence[int]) -> None:
        """Buffer row i becomes the former `buffer_rows[i]`."""
        index = self._index(buffer_rows)
        for layer in self.layers:
            layer.reorder(index)
        if self._states is not None:
            self._states.reorder(index)
        if self._source is not None:
            self._source.select(index)
        self.buffer_rows, self._free_rows, self.n_buffer_rows = list(range(len(buffer_rows))), [], len(buffer_rows)

    def truncate(self, lengths: Sequence[int]) -> None:
        """Truncate each row to a length; a recurrent state that is not kept leaves an empty row."""
        for row, (cached_length, length) in enumerate(zip(self.lengths, lengths, strict=True)):
            self.lengths[row] = cached_length if cached_length <= length else 0 if self._states is not None else length

    def clear(self, rows: Collection[int]) -> None:
        for row in rows:
            self.lengths[row] = 0

    def buffer_rows_of(self, rows: Sequence[int]) -> list[int]:
        return [self.buffer_rows[row] for row in rows]

    def _index(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self._first_parameter.device)


class SharedPrefix:
    """The KV cache of tokens that several rows start with, computed in any number of parts.

    Attributes:
        cache: their keys and values, or the recurrent state after them.
    """

    def __init__(self, model: DecoderOnly) -> None:
        self._model = model
        self.ids: tuple[int, ...] = ()
        self.cache: DecoderCache | RecurrentCache = model.new_cache()

    @torch.inference_mode()
    def extend(self, ids: Sequence[int]) -> None:
        """Compute further tokens."""
        self._model.hidden(torch.tensor([[*ids]], device=next(self._model.parameters()).device), cache=self.cache)
        self.ids += tuple(ids)

    @torch.inference_mode()
    def branch(self, length: int) -> SharedPrefix:
        """Copy the first tokens; of a recurrent model, whose earlier states are not kept, all tokens or none."""
        copied = SharedPrefix(self._model)
        if 0 < length < len(self.ids) and isinstance(self.cache, RecurrentCache):
            return copied
        if length:
            copied.cache = copy.deepcopy(self.cache)
            copied.cache.truncate(length)
            copied.ids = self.ids[:length]
        return copied


class SequenceLayerKVCache(LayerKVCache):
    """Keys and values of one layer, with rows of different lengths.

    Beyond a row's length the buffers hold stale values, which a mask hides; they are always finite, as unwritten ones
    are zero.
    """

    def __init__(self, max_length: int) -> None:
        """Create a cache for rows of at most `max_length` positions."""
        super().__init__()
        self._max_length = max_length
        self._write_positions: Tensor | int = 0

    @classmethod
    def from_buffers(cls, key: Tensor, value: Tensor, positions: Tensor) -> SequenceLayerKVCache:
        """Wrap (rows, kv_heads, length, head) buffers, with (rows,) write positions."""
        cache = cls(key.shape[2])
        cache._key, cache._value, cache._write_positions, cache.length = key, value, positions, key.shape[2]
        return cache

    def write_rows(self, rows: Tensor, key: Tensor, value: Tensor) -> None:
        """Write (rows, kv_heads, length, head) keys and values at the start of some rows."""
        if self._key is None and torch.equal(rows, torch.arange(len(key), device=rows.device)):
            self._key, self._value, self.length = key, value, key.shape[2]
            return
        n_rows, length = int(rows.max()) + 1, key.shape[2]
        self._key, self._value = (
            _grow(buffer, template, n_rows, length, max_length=self._max_length)
            for buffer, template in ((self._key, key), (self._value, value))
        )
        self.length = max(self.length, length)
        self._key[rows, :, :length] = key
        self._value[rows, :, :length] = value

    def set_write_positions(self, positions: Tensor | int, end: int) -> None:
        """Set where the next positions of each row are written, (rows,) or the same for all, all before `end`."""
        assert self._key is not None
        assert self._value is not None
        self._write_positions, self.length = positions, end
        if self._key.shape[2] < end:
            self._key, self._value = (
                _grow(buffer, buffer, len(buffer), end, max_length=self._max_length)
                for buffer in (self._key, self._value)
            )

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write (rows, kv_heads, n, head) keys and values, and return those of all positions."""
        for buffer, new in ((self._key, key), (self._value, value)):
            assert buffer is not None
            if isinstance(self._write_positions, int):
                buffer[:, :, self._write_positions : self._write_positions + new.shape[2]] = new
            else:
                rows, n = (torch.arange(size, device=buffer.device) for size in (len(buffer), new.shape[2]))
                buffer[rows[:, None], :, self._write_positions[:, None] + n] = new.transpose(1, 2)
        return self.keys_and_values()


def _grow(buffer: Tensor | None, template: Tensor, rows: int, length: int, *, max_length: int) -> Tensor:
    """Return a buffer of at least `rows` rows and `length` positions with the contents of the old one."""
    if buffer is None:
        return template.new_zeros(rows, template.shape[1], length, template.shape[3])
    n_rows, heads, capacity, head = buffer.shape
    if n_rows >= rows and capacity >= length:
        return buffer
    longer = capacity if capacity >= length else max(length, min(2 * capacity, max_length))
    grown = buffer.new_zeros(max(rows, n_rows), heads, longer, head)
    grown[:n_rows, :, :capacity] = buffer
    return grown


def row_attention_inputs(
    layers: Sequence[LayerKVCache],
    positions: Tensor,
    n: int,
    end: int,
    dtype: torch.dtype,
    *,
    needs_key_positions: bool,
) -> AttentionInputs:
    """The attention inputs of the next `n` tokens of each row: its cached positions, and causally themselves.

    Args:
        layers: the layers' caches, which return the keys and values of all positions before `end`.
        positions: (rows,) of the first token of each row.
        n: tokens of each row.
        end: greater than all positions.
        needs_key_positions: whether attention needs the positions of keys.
    """
    queries = positions[:, None] if n == 1 else positions[:, None] + torch.arange(n, device=positions.device)
    return AttentionInputs(
        Mask(bias=padding_bias(queries.flatten() + 1, end).view(len(positions), 1, n, end).to(dtype)), caches=layers,
        start=end - n, end=end, query_positions=queries,
        key_positions=torch.arange(end, device=positions.device)[None] if needs_key_positions else None,
    )  # fmt: skip


class TorchEngine:
    """Runs a model in PyTorch."""

    name = "PyTorch"

    def __init__(self, model: DecoderModel) -> None:
        self.model = model

    def new_cache(self, layout: Layout, source: Tensor | None = None, lengths: Tensor | None = None) -> KVCache:
        """Create an empty cache, or, given sources, encode them and create a row for each.

        Args:
            source: (sources, length) IDs, or (sources, length, 4) with dependency trees; of an encoder-decoder.
            lengths: (sources,) real IDs.
        """
        model, encoded = self.model, None
        if source is not None:
            device = next(model.parameters()).device
            if layout == "tree" and lengths is not None and int(lengths.min()) == source.shape[1]:
                lengths = None
            encoded = EncodedSource(model, source.to(device), None if lengths is None else lengths.to(device))  # type: ignore[arg-type]
        if layout == "tree":
            return TreeKVCache(model, source=encoded)
        return SequenceKVCache(model, is_enabled=layout == "sequence", source=encoded)

    def forward(
        self,
        tokens: Tensor,
        rows: Sequence[int],
        positions: Sequence[int],
        cache: KVCache,
        output_spec: OutputSpec,
        *,
        lengths: Sequence[int] | None = None,
    ) -> EngineOutput:
        n = tokens.shape[1]
        with capture_attention_weights(
            self.model.decoder.attention_layers(cross=True)[-1:] if output_spec.attention else ()
        ) as weights:
            hidden = cache.compute_hidden(self.model, tokens, rows, positions, lengths or [n] * len(rows))
        attention = None
        if output_spec.attention:  # (groups, heads, rows of each · n, source length)
            attention = weights[0].mean(1).view(len(rows), n, -1)[:, -output_spec.attention :].sum(1)
        if not output_spec.logits_to_keep:
            return EngineOutput(attention=attention)
        if lengths is None or min(lengths) == n:
            hidden = hidden[:, -output_spec.logits_to_keep :]
        else:
            ends = torch.tensor(lengths, device=hidden.device)[:, None]
            last = ends - output_spec.logits_to_keep + torch.arange(output_spec.logits_to_keep, device=hidden.device)
            hidden = hidden[torch.arange(len(hidden), device=hidden.device)[:, None], last]
        return EngineOutput(logits=self.model.logits(hidden).float(), attention=attention)
