"""What may attend to what, as a description. A tensor is made only for a kernel that cannot do without."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lm.model.scope.patterns import Pattern


@dataclass(frozen=True)
class Mask:
    """Which keys each query may see. The parts restrict each other; with none, every query sees every key.

    Queries are the last positions of the keys: with n_queries < n_keys (a cache), query i stands at position
    n_keys - n_queries + i.

    Attributes:
        is_causal: a query sees its own position and earlier ones.
        key_lengths: (batch,) how many keys of each row are real; the rest is padding.
        pattern: which positions see which, where not all do.
        pairs: True where a query sees a key, broadcastable to (batch, 1, queries, keys).
        bias: added to the scores, broadcastable to (batch, heads, queries, keys).
    """

    is_causal: bool = False
    key_lengths: Tensor | None = None
    pattern: Pattern | None = None
    pairs: Tensor | None = None
    bias: Tensor | None = None

    @classmethod
    def causal(cls, *, pattern: Pattern | None = None, bias: Tensor | None = None) -> Mask:
        """Each position sees itself and what came before, of which a pattern may leave some out."""
        return cls(is_causal=True, pattern=pattern, bias=bias)

    @classmethod
    def keys(cls, lengths: Tensor | None) -> Mask:
        """Each position sees the first `lengths[row]` keys of its row; all of them if there are no lengths."""
        return cls(key_lengths=lengths)

    def with_bias(self, bias: Tensor) -> Mask:
        """This mask, with a bias more; it is broadcastable to (batch, heads, queries, keys)."""
        return replace(self, bias=bias if self.bias is None else self.bias + bias)

    def within(self, pattern: Pattern) -> Mask:
        """This mask, restricted to a pattern."""
        return replace(self, pattern=pattern)

    def is_flag(self, n_queries: int, n_keys: int) -> bool:
        """Whether a kernel's own `is_causal` flag, or nothing at all, says everything that this mask says."""
        if self.key_lengths is not None or self.pairs is not None or self.bias is not None:
            return False
        if self.pattern is not None and n_keys > self.pattern.whole:
            return False
        return not self.is_causal or n_queries in (1, n_keys)

    def allowed(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor | None:
        """(batch or 1, 1, n_queries, n_keys) booleans, True where a query sees a key; None where all see all."""
        allowed = self.pairs
        if self.is_causal or self.pattern is not None:
            by_position = self._by_position(n_queries, n_keys, device)
            allowed = by_position if allowed is None else allowed & by_position
        if self.key_lengths is not None:
            real = (torch.arange(n_keys, device=device) < self.key_lengths[:, None])[:, None, None]
            allowed = real if allowed is None else allowed & real
        return allowed

    def _by_position(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor:
        """(1, 1, n_queries, n_keys) booleans: what the places of queries and keys allow."""
        queries = torch.arange(n_keys - n_queries, n_keys, device=device)[:, None]
        keys = torch.arange(n_keys, device=device)
        if self.pattern is None:
            return (queries >= keys)[None, None]
        seen = self.pattern.sees(queries, keys, within=n_keys)
        return (seen & (queries >= keys) if self.is_causal else seen)[None, None]


def padding(lengths: Tensor, longest: int) -> Tensor:
    """(rows, longest): -inf where a row of so many positions has ended, else zero; float32."""
    is_padding = torch.arange(longest, device=lengths.device) >= lengths[:, None]
    return torch.zeros(is_padding.shape, device=lengths.device).masked_fill_(is_padding, -torch.inf)
