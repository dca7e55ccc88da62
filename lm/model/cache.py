"""What is kept of positions that were read before, so that a decoder reads each token only once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

State = Tensor | tuple[Tensor, Tensor]
"""The hidden state of a recurrent layer, (1, rows, width); of an LSTM with the state of its cells."""


class KeyValueCache:
    """Keys and values of the positions that one attention layer has read so far, in buffers that grow by doubling."""

    def __init__(self) -> None:
        self.length = 0
        self._key: Tensor | None = None
        self._value: Tensor | None = None

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append (batch, kv_heads, n, head) keys and values, and return all keys and values so far."""
        start, self.length = self.length, self.length + key.shape[2]
        if self._key is None or self._value is None:  # without room: a memory never grows
            self._key, self._value = key.contiguous(), value.contiguous()
            return self._key, self._value
        self._key = _with_room(self._key, key, start, self.length)
        self._value = _with_room(self._value, value, start, self.length)
        self._key[:, :, start : self.length] = key
        self._value[:, :, start : self.length] = value
        return self.contents()

    def grow(self, positions: int) -> None:
        """Make room for so many positions more, and count them: somebody else writes them into the `buffers`."""
        start, self.length = self.length, self.length + positions
        key, value = self.buffers()
        if key.shape[2] < self.length:
            self._key, self._value = (_with_room(buffer, buffer, start, self.length) for buffer in (key, value))

    def buffers(self) -> tuple[Tensor, Tensor]:
        """Keys and values with the room that they have, (batch, kv_heads, room, head) each."""
        assert self._key is not None
        assert self._value is not None
        return self._key, self._value

    def move(self, key: Tensor, value: Tensor) -> None:
        """Go on in other buffers, (batch, kv_heads, room, head) each, which are zero beyond what is here."""
        for buffer, held in zip((key, value), self.contents(), strict=True):
            buffer[:, :, : self.length] = held
            buffer[:, :, self.length :] = 0.0
        self._key, self._value = key, value

    def contents(self) -> tuple[Tensor, Tensor]:
        """Keys and values so far, (batch, kv_heads, length, head) each."""
        key, value = self.buffers()
        return key[:, :, : self.length], value[:, :, : self.length]

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was; rows may be repeated or left out."""
        if self._key is not None and self._value is not None:
            self._key = self._key.index_select(0, rows)
            self._value = self._value.index_select(0, rows)

    def select(self, positions: Tensor) -> None:
        """Keep only these positions of each row, in this order; `positions` is (batch, kept)."""
        if self._key is not None and self._value is not None:
            batch, heads, room, head = self._key.shape
            first = torch.arange(0, batch * heads * room, room, device=positions.device).view(batch, heads, 1)
            places = (first + positions[:, None]).flatten()
            self.length = positions.shape[1]
            for buffer in (self._key, self._value):
                kept = buffer.view(-1, head).index_select(0, places)
                buffer[:, :, : self.length] = kept.view(batch, heads, -1, head)

    def truncate(self, length: int) -> None:
        """Forget the positions from `length` on."""
        self.length = min(self.length, length)


class CompressedCache(KeyValueCache):
    """Keys and values of a layer that attends to compressed ones: these, and those of the positions they come from.

    Those of all positions are kept, so that any number of them can be forgotten.
    """

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride, self.compressed = stride, KeyValueCache()

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was."""
        super().reorder(rows)
        self.compressed.reorder(rows)

    def select(self, positions: Tensor) -> None:
        """Not possible: what covers several positions does not follow one of them."""
        raise NotImplementedError("compressed keys and values belong to positions that stand in a line")

    def truncate(self, length: int) -> None:
        """Forget the positions from `length` on, and what covers any of them."""
        super().truncate(length)
        self.compressed.truncate(self.length // self.stride)


def _with_room(buffer: Tensor, like: Tensor, used: int, needed: int) -> Tensor:
    """A buffer for `needed` positions or more that holds the first `used` positions of the old one."""
    if buffer.shape[2] >= needed:
        return buffer
    batch, heads, _, head = like.shape
    grown = like.new_empty(batch, heads, max(needed, 2 * used, 64), head)
    grown[:, :, :used] = buffer[:, :, :used]
    return grown


class DecoderCache:
    """What the layers of a decoder remember from step to step.

    Attributes:
        own: for each layer, keys and values of the decoder's own positions.
        memory: for each layer, keys and values of the memory that cross-attention reads; they are computed once.
    """

    def __init__(self, own: Sequence[KeyValueCache]) -> None:
        self.own = own
        self.memory = [KeyValueCache() for _ in own]

    @property
    def length(self) -> int:
        """Positions fed so far."""
        return self.own[0].length

    def reorder(self, rows: Tensor, *, same_sources: bool = False) -> None:
        """Row i becomes what row `rows[i]` was, in every layer; with `same_sources` its memory is that row's."""
        for layer in self.own if same_sources else (*self.own, *self.memory):
            layer.reorder(rows)

    def select(self, positions: Tensor) -> None:
        """Keep only some of its own positions of each row, (batch, kept), in every layer; the memory stays."""
        for layer in self.own:
            layer.select(positions)

    def truncate(self, length: int) -> None:
        """Forget its own positions from `length` on; the memory stays."""
        for layer in self.own:
            layer.truncate(length)


class RecurrentCache:
    """What a recurrent decoder remembers from step to step: states after the last position, and of none before.

    Attributes:
        length: positions fed so far.
        states: of each layer after them.
        memory: keys and values of the source that attention reads; they are computed once.
    """

    def __init__(self) -> None:
        self.length = 0
        self.states: Sequence[State] = ()
        self.memory = [KeyValueCache()]

    def advance(self, states: Sequence[State], positions: int) -> None:
        """The states after so many more positions."""
        self.states, self.length = states, self.length + positions

    def reorder(self, rows: Tensor, *, same_sources: bool = False) -> None:
        """Row i becomes what row `rows[i]` was; with `same_sources` the memory of row i is that of row `rows[i]`."""
        self.states = [_rows_of(state, rows) for state in self.states]
        for layer in () if same_sources else self.memory:
            layer.reorder(rows)

    def truncate(self, length: int) -> None:
        """Forget the positions from `length` on: all of them, for earlier states are not kept; the memory stays."""
        if length < self.length:
            self.length, self.states = 0, ()


def _rows_of(state: State, rows: Tensor) -> State:
    if isinstance(state, Tensor):
        return state.index_select(1, rows)
    hidden, cells = state
    return hidden.index_select(1, rows), cells.index_select(1, rows)
