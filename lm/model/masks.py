"""What may attend to what, as a description. A tensor is made only for a kernel that cannot do without."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Mask:
    """Which keys each query may see. The parts restrict each other; with none, every query sees every key.

    Queries are the last positions of the keys: with n_queries < n_keys (a cache), query i stands at position
    n_keys - n_queries + i.

    Attributes:
        is_causal: a query sees its own position and earlier ones.
        key_lengths: (batch,) how many keys of each row are real; the rest is padding.
        window: a query sees this many positions up to its own (with `is_causal`).
        bias: added to the scores, broadcastable to (batch, heads, queries, keys).
    """

    is_causal: bool = False
    key_lengths: Tensor | None = None
    window: int | None = None
    bias: Tensor | None = None

    @classmethod
    def causal(cls, *, window: int | None = None, bias: Tensor | None = None) -> Mask:
        """Each position sees itself and what came before, at most `window` positions in all."""
        return cls(is_causal=True, window=window, bias=bias)

    @classmethod
    def keys(cls, lengths: Tensor | None) -> Mask:
        """Each position sees the first `lengths[row]` keys of its row; all of them if there are no lengths."""
        return cls(key_lengths=lengths)

    def with_bias(self, bias: Tensor) -> Mask:
        """This mask, with a bias more; it is broadcastable to (batch, heads, queries, keys)."""
        return replace(self, bias=bias if self.bias is None else self.bias + bias)

    def is_flag(self, n_queries: int, n_keys: int) -> bool:
        """Whether a kernel's own `is_causal` flag, or nothing at all, says everything that this mask says."""
        if self.key_lengths is not None or self.bias is not None or (self.window is not None and self.window < n_keys):
            return False
        return not self.is_causal or n_queries in (1, n_keys)

    def allowed(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor | None:
        """(batch or 1, 1, n_queries, n_keys) booleans, True where a query sees a key; None where all see all."""
        allowed = None
        if self.is_causal:
            distance = torch.arange(n_keys - n_queries, n_keys, device=device)[:, None] - torch.arange(
                n_keys, device=device
            )
            allowed = (distance >= 0) if self.window is None else (distance >= 0) & (distance < self.window)
            allowed = allowed[None, None]
        if self.key_lengths is not None:
            real = (torch.arange(n_keys, device=device) < self.key_lengths[:, None])[:, None, None]
            allowed = real if allowed is None else allowed & real
        return allowed
