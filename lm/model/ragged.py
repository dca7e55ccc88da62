"""Caches whose rows are of different lengths, and come and go: what a row remembers is written in place."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap

import torch
from torch import Tensor

from lm.model.attention_inputs import Mask, Scope, padding
from lm.model.cache import DecoderCache, KeyValueCache, RecurrentCache, State


class RaggedKeyValueCache(KeyValueCache):
    """Keys and values of one layer, of each row at the places of its positions.

    What a row has beyond its own length is left over from others, and a mask hides it. It was a number at least: what
    nobody has written is zero.
    """

    def __init__(self, most: int) -> None:
        """Of rows of at most so many positions."""
        super().__init__()
        self._most = most
        self._places: Tensor | int = 0

    @classmethod
    def within(cls, key: Tensor, value: Tensor, places: Tensor) -> RaggedKeyValueCache:
        """A cache that is all of these (rows, kv_heads, length, head) buffers, aimed at (rows,) `places` in them."""
        cache = cls(key.shape[2])
        cache._key, cache._value, cache._places, cache.length = key, value, places, key.shape[2]
        return cache

    def put(self, rows: Tensor, key: Tensor, value: Tensor) -> None:
        """Some rows begin anew with these (rows, kv_heads, length, head) keys and values."""
        n_rows, length = int(rows.max()) + 1, key.shape[2]
        self._key, self._value = (
            _with_room(buffer, like, n_rows, length, most=self._most)
            for buffer, like in ((self._key, key), (self._value, value))
        )
        self.length = max(self.length, length)
        self._key[rows, :, :length] = key
        self._value[rows, :, :length] = value

    def aim(self, places: Tensor | int, end: int) -> None:
        """Say where the next position of each row goes, (rows,) or the same for all; all of them lie before `end`."""
        assert self._key is not None
        assert self._value is not None
        self._places, self.length = places, end
        self._key, self._value = (
            _with_room(buffer, buffer, len(buffer), end, most=self._most) for buffer in (self._key, self._value)
        )

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append (rows, kv_heads, 1, head) keys and values where it was aimed at, and return those of all places."""
        for buffer, fresh in ((self._key, key), (self._value, value)):
            assert buffer is not None
            if isinstance(self._places, int):
                buffer[:, :, self._places : self._places + 1] = fresh
            else:
                buffer[torch.arange(len(buffer), device=buffer.device), :, self._places] = fresh[:, :, 0]
        return self.contents()


def _with_room(buffer: Tensor | None, like: Tensor, rows: int, length: int, *, most: int) -> Tensor:
    """A buffer for so many rows and positions or more that holds what the old one held; it grows by doubling."""
    if buffer is None:
        return like.new_zeros(rows, like.shape[1], length, like.shape[3])
    n_rows, heads, room, head = buffer.shape
    if n_rows >= rows and room >= length:
        return buffer
    longer = room if room >= length else max(length, min(2 * room, most))
    grown = buffer.new_zeros(max(rows, n_rows), heads, longer, head)
    grown[:n_rows, :, :room] = buffer
    return grown


class RaggedCache(DecoderCache):
    """What the layers of a decoder remember of rows of different lengths."""

    def __init__(self, layers: int, most: int) -> None:
        """Of so many layers, and of rows of at most so many positions."""
        self._layers = [RaggedKeyValueCache(most) for _ in range(layers)]
        super().__init__(self._layers)

    def put(self, rows: Tensor, read: DecoderCache | RecurrentCache, which: Tensor) -> None:
        """Some rows begin anew with what others, (rows,) of them, were read as."""
        assert isinstance(read, DecoderCache)
        for layer, other in zip(self._layers, read.own, strict=True):
            layer.put(rows, *(part.index_select(0, which) for part in other.contents()))

    def scope(self, positions: Sequence[int], like: Tensor, *, places_keys: bool) -> Scope:
        """What the next token of each row sees: what its row remembers, and itself.

        Args:
            positions: where it stands; of rows that are nobody's, anywhere.
            like: a tensor of the model's type, on its device.
            places_keys: whether attention has to know where keys stand.
        """
        end = max(positions) + 1
        if min(positions) + 1 == end:
            self._aim(end - 1, end)
            return Scope(Mask.causal(), caches=self.own, start=end - 1)
        places = torch.tensor(positions, device=like.device)
        self._aim(places, end)
        return ragged_scope(self.own, places, end, like.dtype, places_keys=places_keys)

    def make_room(self, positions: Sequence[int]) -> None:
        """See that the next token of each row, which stands there, can be written into the layers' `buffers`."""
        self._aim(0, max(positions) + 1)

    def _aim(self, places: Tensor | int, end: int) -> None:
        for layer in self._layers:
            layer.aim(places, end)


def ragged_scope(
    layers: Sequence[KeyValueCache], places: Tensor, end: int, dtype: torch.dtype, *, places_keys: bool
) -> Scope:
    """What the next token of each row sees: what its row remembers, and itself.

    Args:
        layers: their caches, which give back the keys and values of all places before `end`.
        places: (rows,) where it stands in its row.
        end: after all of these.
        dtype: of the model.
        places_keys: whether attention has to know where keys stand.
    """
    return Scope(
        Mask(bias=padding(places + 1, end)[:, None, None].to(dtype)), caches=layers, start=end - 1, end=end,
        query_positions=places[:, None],
        key_positions=torch.arange(end, device=places.device)[None] if places_keys else None,
    )  # fmt: skip


class RaggedStates(RecurrentCache):
    """The states of recurrent layers, each row after another number of positions."""

    def put(self, rows: Tensor, read: DecoderCache | RecurrentCache, which: Tensor) -> None:
        """Some rows begin anew with what others, (rows,) of them, were read as."""
        assert isinstance(read, RecurrentCache)
        read.reorder(which)
        before: Sequence[State | None] = self.states or [None] * len(read.states)
        self.states = [_placed(old, new, rows) for old, new in zip(before, read.states, strict=True)]
        self.length = max(self.length, read.length)

    def scope(self, positions: Sequence[int], like: Tensor, *, places_keys: bool) -> Scope:  # noqa: ARG002
        """What the next token of each row sees: the state of its row; see `RaggedCache.scope`."""
        places = torch.tensor(positions, device=like.device)[:, None]
        return Scope(Mask.causal(), recurrent=self, start=max(positions), query_positions=places)


def _placed(states: State | None, fresh: State, rows: Tensor) -> State:
    """States, (1, rows, width), in which some rows are new; there may be more of them than before."""
    if isinstance(fresh, tuple):
        pairs = zip((None, None) if states is None else states, fresh, strict=True)
        hidden, cells = starmap(lambda old, new: _placed(old, new, rows), pairs)
        assert isinstance(hidden, Tensor)
        assert isinstance(cells, Tensor)
        return hidden, cells
    assert not isinstance(states, tuple)
    n_rows = int(rows.max()) + 1
    known = 0 if states is None else states.shape[1]
    grown = fresh.new_zeros(1, max(n_rows, known), fresh.shape[2])
    if states is not None:
        grown[:, :known] = states
    grown[:, rows] = fresh
    return grown
