"""The tree KV cache: continuations of one prompt or source, such as a beam, share the slots of their common past."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from lm.engine.engine import CompiledStepInputs, DecoderModel, EncodedSource
from lm.model.attention import AttentionInputs, Mask, padding_bias
from lm.model.kv_cache import DecoderCache
from lm.model.transformer import DecoderOnly

_FIRST_SLOTS = 32
"""Slots before unused ones are first searched."""


class TreeKVCache:
    """A KV cache in which the continuations of each prompt or source share the slots of their common past.

    A slot table, as of a paged cache with pages of one token, and a tree attention mask tell them apart.

    All rows have the same number of tokens after their start: a prompt, or the source of a decoder-only model that
    translates; or nothing, where an encoder has read the source. The methods are those of `SequenceKVCache`, of all
    rows at once.
    """

    def __init__(self, model: DecoderModel, *, source: EncodedSource | None = None) -> None:
        """Create a cache without rows, or with one for each source."""
        self._model, self._first_parameter, self._source = model, next(model.parameters()), source
        self.lengths: list[int] = []
        self.removes_rows_for_free = False  # after a compiled step, which finds prompts and sources wherever they are
        self._slots: SlotTable | None = None
        self._cache = _new_cache(model)
        if source is not None:
            self.add(len(source.output))
            self._slots = SlotTable(self._cache, len(source.output), source.output)

    def needs_prefill(self, row: int) -> bool:  # noqa: ARG002 (they are all alike)
        return self._slots is None

    def add(self, rows: int) -> None:
        assert not any(self.lengths), "rows of a tree cache are added together"
        self.lengths += [0] * rows

    def prefill(
        self,
        tokens: Tensor,
        rows: Sequence[int],  # noqa: ARG002
        lengths: Sequence[int],
        past: object = None,  # noqa: ARG002
    ) -> Tensor:
        """Compute the prompts; padding comes last, so it is masked causally."""
        assert isinstance(self._model, DecoderOnly)
        tokens = tokens.to(self._first_parameter.device)
        is_even = min(lengths) == tokens.shape[1]
        real_lengths = None if is_even else torch.tensor(lengths, device=tokens.device)
        self._cache = _new_cache(self._model)
        hidden = self._model.hidden(tokens, cache=self._cache, target_lengths=real_lengths)
        self._slots = SlotTable(self._cache, len(tokens), self._first_parameter, prefix=real_lengths)
        self.lengths = list(lengths)
        return hidden

    def step(self, tokens: Tensor, rows: Sequence[int], positions: Sequence[int]) -> Tensor:  # noqa: ARG002
        assert self._slots is not None
        slots, n, source, cross_inputs = self._slots, tokens.shape[1], self._source, None
        self._move_sources(slots.compact())
        start = slots.next_position
        mask = slots.allocate_and_mask(n)
        inputs = AttentionInputs(
            mask, caches=self._cache.self_attention, start=start, query_positions=slots.query_positions(n),
            end=start + n,
            key_positions=slots.key_positions(n) if self._model.config.needs_key_positions else None,
        )  # fmt: skip
        if source is not None:
            cross_mask = Mask()
            if source.lengths is not None:
                bias = padding_bias(source.lengths, source.output.shape[1])[:, None, None]
                cross_mask = Mask(bias=bias.to(source.output.dtype))
            cross_inputs = AttentionInputs(cross_mask, encoder_output=source.output, caches=self._cache.cross_attention)
        batch = tokens.to(self._first_parameter.device).reshape(slots.n_groups, -1)
        hidden = self._model.decode(batch, inputs, cross_inputs)
        self._advance(n)
        self.removes_rows_for_free = False
        return hidden.view(len(rows), n, -1)

    def prepare_step(self, tokens: Tensor, rows: Sequence[int], positions: Sequence[int]) -> CompiledStepInputs:  # noqa: ARG002
        assert self._slots is not None
        slots, n, source, lengths = self._slots, tokens.shape[1], self._source, None
        slots.allocate(n)
        for layer in self._cache.self_attention:
            layer.reserve(slots.rows_per_group * n)
        self._advance(n)
        self.removes_rows_for_free = True
        starts = torch.tensor(positions)
        at = starts if n == 1 else (starts[:, None] + torch.arange(n)).flatten()
        group_rows = slots.group_rows.repeat_interleave(slots.rows_per_group * n)
        table = slots.build_table() if n == 1 else slots.build_table().repeat_interleave(n, 0)
        if source is not None:
            n_groups, longest, _ = source.output.shape
            lengths = torch.full((n_groups,), longest) if source.lengths is None else source.lengths
        return CompiledStepInputs(
            tokens.flatten(), group_rows, at, self._cache.self_attention, table.shape[1], slots=table,
            cross_layers=() if source is None else self._cache.cross_attention, lengths=lengths,
        )  # fmt: skip

    def _advance(self, n: int) -> None:
        self.lengths = [length + n for length in self.lengths]

    def select(self, rows: Sequence[int]) -> None:
        """Row i becomes the former row `rows[i]`; rows may be repeated. Nothing is copied within a prompt."""
        assert self._slots is not None
        self.lengths = [self.lengths[row] for row in rows]
        index = torch.tensor(rows, dtype=torch.long, device=self._first_parameter.device)
        self._move_sources(self._slots.reorder(index, lazy=self.removes_rows_for_free))

    def release(self, rows: Collection[int]) -> None:
        self.select([row for row in range(len(self.lengths)) if row not in rows])

    def _move_sources(self, moved: Tensor | None) -> None:
        if moved is not None and self._source is not None:
            self._source.select(moved, layers=False)

    def truncate(self, lengths: Sequence[int]) -> None:
        """Truncate each row to a length; below its start, all are emptied."""
        held = min(length - held for length, held in zip(lengths, self.lengths, strict=True))
        if self._slots is None or held >= 0:
            return
        if self._slots.length + held < 0:
            self.clear(0)
            return
        self._slots.truncate(self._slots.length + held)
        self._advance(held)

    def clear(self, row: int) -> None:  # noqa: ARG002 (they are all alike)
        """Empty all rows, which are then recomputed, each as a prompt of its own."""
        assert self._source is None, "encoded sources are not prefilled again"
        self._slots, self.lengths = None, [0] * len(self.lengths)


def _new_cache(model: DecoderModel) -> DecoderCache:
    cache = model.new_cache()
    assert isinstance(cache, DecoderCache)
    return cache


class SlotTable:
    """Assigns the tokens of continuations to slots of a KV cache, and builds the mask of each.

    For the model, all continuations of one prompt (a group) share one row. Each position has a slot that it
    keeps: a row knows the slots of its own past, and a mask hides the others. So nothing is copied when rows are
    reordered; unused slots are freed now and then. The prefix, what the cache held at first, is visible to all rows of
    a group.

    The rows of a group must be adjacent. If groups differ in size after `reorder`, they are repeated as needed.

    Attributes:
        group_rows: (n_groups,) the cache row of each group.

    Source: the mask is that of tree attention, Miao et al. 2023 (SpecInfer), section 4.
    """

    def __init__(self, cache: DecoderCache, n_groups: int, template: Tensor, *, prefix: Tensor | None = None) -> None:
        """Create one row per group, with nothing after the prefix.

        Args:
            template: a tensor of the model's dtype, on its device.
            prefix: (groups,) real positions of the prefix, if it is padded.
        """
        self.rows_per_group, self.n_groups, self._cache_rows = 1, n_groups, n_groups
        self.group_rows = torch.arange(n_groups, device=template.device)
        self._cache, self._dtype, self._device = cache, template.dtype, template.device
        self._prefix_length, self._prefix_lengths = cache.length, prefix
        self._row_slots = torch.empty(n_groups, 0, dtype=torch.long, device=template.device)  # (rows, length) slots
        self._free_at = self._prefix_length + _FIRST_SLOTS

    @property
    def length(self) -> int:
        """Tokens of each row after the prefix."""
        return self._row_slots.shape[1]

    @property
    def next_position(self) -> int:
        """The position of the next token, if all prefixes have the same length."""
        return self._prefix_length + self.length

    def allocate(self, n: int) -> Tensor:
        """Assign slots to the next `n` positions of each row; return (rows, length) slots of all tokens."""
        used = self._cache.length
        new_slots = torch.arange(used, used + self.rows_per_group * n, device=self._device).view(self.rows_per_group, n)
        self._row_slots = torch.cat((self._row_slots, new_slots.repeat(self.n_groups, 1)), dim=1)
        return self._row_slots

    def allocate_and_mask(self, n: int) -> Mask:
        """Assign slots to the next `n` positions of each row, and build their mask."""
        start, slots = self.length, self._cache.length + self.rows_per_group * n
        past = self.allocate(n)
        if slots == self.next_position and self._prefix_lengths is None:
            return Mask.causal()
        visible_slots = past[:, None, :].expand(-1, n, -1)  # (rows, n, length)
        if n > 1:  # future slots are replaced by the position's own
            future = torch.ones(n, self.length, dtype=torch.bool, device=self._device).triu(start + 1)
            visible_slots = torch.where(future, past[:, start:, None], visible_slots)
        hidden = torch.full((self.n_groups, self.rows_per_group * n, slots), -torch.inf, device=self._device)
        hidden[:, :, : self._prefix_length] = (
            0.0 if self._prefix_lengths is None else padding_bias(self._prefix_lengths, self._prefix_length)[:, None]
        )
        visible_slots = visible_slots.reshape(self.n_groups, self.rows_per_group * n, self.length)
        return Mask(bias=hidden.scatter_(2, visible_slots, 0.0).to(self._dtype)[:, None])

    def query_positions(self, n: int) -> Tensor:
        """(groups or 1, rows of each · n) positions of the last `n` tokens."""
        positions = torch.arange(self.length - n, self.length, device=self._device).repeat(self.rows_per_group)[None]
        return positions + (self._prefix_length if self._prefix_lengths is None else self._prefix_lengths[:, None])

    def key_positions(self, n: int) -> Tensor:
        """(groups, slots) positions of the slots, the last `n` positions of each row included.

        Rows that share a slot have it at the same position; an unused slot counts as the first.
        """
        past = self._row_slots.view(self.n_groups, -1)  # (groups, rows of each · length)
        first = self._prefix_length if self._prefix_lengths is None else self._prefix_lengths[:, None]
        positions = first + torch.arange(self.length, device=self._device).repeat(self.rows_per_group)
        positions_of_slots = past.new_zeros(self.n_groups, self._cache.length + self.rows_per_group * n)
        positions_of_slots[:, : self._prefix_length] = torch.arange(self._prefix_length, device=self._device)
        return positions_of_slots.scatter_(1, past, positions.expand_as(past))

    def reorder(self, rows: Tensor, *, lazy: bool = False) -> Tensor | None:
        """Row i becomes the former row `rows[i]`.

        Args:
            rows: (new rows,).
            lazy: groups may stay where they are in the cache, see `group_rows`, as long as each is there once.

        Returns:
            The result of `compact`.
        """
        self._row_slots = self._row_slots.index_select(0, rows)
        sentences = rows // self.rows_per_group
        runs = sentences.unique_consecutive(return_counts=True)[1]
        self.rows_per_group = math.gcd(*runs.tolist())
        kept = sentences[:: self.rows_per_group]
        self.n_groups, self.group_rows = len(kept), self.group_rows.index_select(0, kept)
        self._prefix_lengths = None if self._prefix_lengths is None else self._prefix_lengths.index_select(0, kept)
        is_full = self._cache.length + self.rows_per_group > self._free_at
        if lazy and not is_full and len(self.group_rows.unique()) == self.n_groups:
            return None
        moved = self.compact()
        if is_full:
            self._free_unused_slots()
        return moved

    def compact(self) -> Tensor | None:
        """Move groups to consecutive cache rows; return (groups,) their former rows, or None if nothing moved."""
        rows, consecutive = self.group_rows, torch.arange(self.n_groups, device=self._device)
        if self.n_groups == self._cache_rows and torch.equal(rows, consecutive):
            return None
        self._cache.reorder(rows)
        self.group_rows, self._cache_rows = consecutive, self.n_groups
        return rows

    def _free_unused_slots(self) -> None:
        """Free the slots that no row uses.

        An unused slot costs its share of every later step, and freeing costs as much as there are slots; both are least
        when the steps between grow with the square root of the slots.
        """
        past = self._row_slots.view(self.n_groups, -1)  # (groups, rows of each · length)
        used = past.new_zeros(len(past), self._cache.length).scatter_(1, past, 1)
        used[:, : self._prefix_length] = 1
        new_slots = used.cumsum(1) - 1
        n_slots = int(new_slots[:, -1].max()) + 1
        self._cache.select(used.argsort(dim=1, descending=True, stable=True)[:, :n_slots])
        self._row_slots = new_slots.gather(1, past).view(self._row_slots.shape)
        self._free_at = n_slots + self.rows_per_group * (1 + math.isqrt(n_slots))

    def build_table(self) -> Tensor:
        """(rows, longest) the slot of each position of each row, its prefix included."""
        if not self._prefix_length:
            return self._row_slots
        table = torch.arange(self._prefix_length, device=self._device).repeat(len(self._row_slots), 1)
        table = torch.cat((table, torch.zeros_like(self._row_slots)), dim=1)
        if self._prefix_lengths is None:
            table[:, self._prefix_length :] = self._row_slots
            return table
        first = self._prefix_lengths.repeat_interleave(self.rows_per_group)[:, None]
        return table.scatter_(1, first + torch.arange(self.length, device=self._device), self._row_slots)

    def truncate(self, length: int) -> None:
        """Keep only the first `length` tokens after the prefix."""
        self._row_slots = self._row_slots[:, :length]
