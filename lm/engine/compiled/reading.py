"""What the compiled step is to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from lm.model.cache import KeyValueCache


@dataclass(frozen=True, slots=True)
class Reading:
    """Tokens to be read, several of a row among them; their keys and values go into the caches.

    Attributes:
        tokens: (number,) ids.
        rows: (number,) the row of the caches that each token belongs to.
        positions: (number,) where it stands in its row.
        layers: the cache of each layer, with room for the new positions.
        slots: (number, positions) where in its row of the caches that is which stands at each position up to its own;
            None if it stands at that position.
        memory: of each layer of an encoder-decoder, keys and values of each row's source.
        lengths: (rows,) how many of these are real; None without a memory.
    """

    tokens: Tensor
    rows: Tensor
    positions: Tensor
    layers: Sequence[KeyValueCache]
    slots: Tensor | None = None
    memory: Sequence[KeyValueCache] = ()
    lengths: Tensor | None = None
