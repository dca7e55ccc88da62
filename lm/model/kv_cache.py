"""KV caches of the model.

Those of engines and decode sessions, with rows of different lengths, are in `lm.engine`.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


class LayerKVCache:
    """Keys and values of one attention layer, in buffers that grow by doubling."""

    def __init__(self) -> None:
        self.length = 0
        self._key: Tensor | None = None
        self._value: Tensor | None = None

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append (batch, kv_heads, n, head) keys and values; return all keys and values."""
        start, self.length = self.length, self.length + key.shape[2]
        if self._key is None or self._value is None:  # without spare capacity: an encoder output never grows
            self._key, self._value = key.contiguous(), value.contiguous()
            return self._key, self._value
        self._key = _grow(self._key, start, self.length)
        self._value = _grow(self._value, start, self.length)
        self._key[:, :, start : self.length] = key
        self._value[:, :, start : self.length] = value
        return self.keys_and_values()

    def buffers(self) -> tuple[Tensor, Tensor]:
        """Return the key and value buffers, (batch, kv_heads, capacity, head) each."""
        assert self._key is not None
        assert self._value is not None
        return self._key, self._value

    def keys_and_values(self) -> tuple[Tensor, Tensor]:
        """Return the keys and values so far, (batch, kv_heads, length, head) each."""
        key, value = self.buffers()
        return key[:, :, : self.length], value[:, :, : self.length]

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes the former row `rows[i]`; rows may be repeated or left out."""
        if self._key is not None and self._value is not None:
            self._key = self._key.index_select(0, rows)
            self._value = self._value.index_select(0, rows)

    def truncate(self, length: int) -> None:
        """Drop the positions from `length` on."""
        self.length = min(self.length, length)


def _grow(buffer: Tensor, n_used: int, length: int) -> Tensor:
    """Return a buffer of at least `length` positions that starts with the first `n_used` positions of `buffer`."""
    if buffer.shape[2] >= length:
        return buffer
    batch, heads, _, head = buffer.shape
    grown = buffer.new_empty(batch, heads, max(length, 2 * n_used, 64), head)
    grown[:, :, :n_used] = buffer[:, :, :n_used]
    return grown


class DecoderCache:
    """The KV caches of all layers of a decoder.

    Attributes:
        self_attention: the cache of each layer for the positions decoded so far.
        cross_attention: the cache of each layer for the encoder output, filled once.
    """

    def __init__(self, own: Sequence[LayerKVCache]) -> None:
        self.self_attention = own
        self.cross_attention = [LayerKVCache() for _ in own]

    @property
    def length(self) -> int:
        """The number of positions decoded so far."""
        return self.self_attention[0].length

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes the former row `rows[i]`, in every layer."""
        for layer in (*self.self_attention, *self.cross_attention):
            layer.reorder(rows)

    def truncate(self, length: int) -> None:
        """Drop the positions from `length` on from the self-attention caches."""
        for layer in self.self_attention:
            layer.truncate(length)
