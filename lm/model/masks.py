"""Attention masks as descriptions: causal, key lengths, sparsity patterns and biases.

A mask tensor is built only for a kernel that needs one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor


class SparsityPattern(Protocol):
    """Which keys each query sees, besides what makes it causal; it can be compared and hashed."""

    @property
    def block_size(self) -> int:
        """Positions of a block."""

    @property
    def dense_length(self) -> int:
        """The length up to which all see all."""

    @property
    def n_dense_blocks(self) -> int:
        """Blocks at the beginning whose queries see every key."""

    def max_key_blocks(self, *, is_causal: bool) -> int:
        """How many blocks any other sees at most."""

    def build_block_mask(self, n_blocks: int) -> Tensor:
        """(n_blocks, n_blocks) booleans: whether any query of a block sees any key of another."""

    def build_token_mask(self, queries: Tensor, keys: Tensor, *, within: int) -> Tensor:
        """Whether the queries at some positions see the keys at others, all of them less than `within`; broadcast."""

    def first_visible(self, query: int) -> int:
        """The first position that this query or a later one sees."""


@dataclass(frozen=True)
class Mask:
    """Which keys each query may see. The parts restrict each other; with none, every query sees every key.

    Queries are the last positions of the keys: with n_queries < n_keys (a cache), query i stands at position
    n_keys - n_queries + i.

    Attributes:
        is_causal: a query sees its own position and earlier ones.
        key_lengths: (batch,) how many keys of each row are real; the rest is padding.
        pattern: which positions see which, where not all do.
        visible: True where a query sees a key, broadcastable to (batch, 1, queries, keys).
        bias: added to the scores, broadcastable to (batch, heads, queries, keys).
    """

    is_causal: bool = False
    key_lengths: Tensor | None = None
    pattern: SparsityPattern | None = None
    visible: Tensor | None = None
    bias: Tensor | None = None

    @classmethod
    def causal(cls, *, pattern: SparsityPattern | None = None, bias: Tensor | None = None) -> Mask:
        """Each position sees itself and what came before, of which a pattern may leave some out."""
        return cls(is_causal=True, pattern=pattern, bias=bias)

    @classmethod
    def keys(cls, lengths: Tensor | None) -> Mask:
        """Each position sees the first `lengths[row]` keys of its row; all of them if there are no lengths."""
        return cls(key_lengths=lengths)

    def with_bias(self, bias: Tensor) -> Mask:
        """This mask, with a bias more; it is broadcastable to (batch, heads, queries, keys)."""
        return replace(self, bias=bias if self.bias is None else self.bias + bias)

    def with_pattern(self, pattern: SparsityPattern) -> Mask:
        """This mask, restricted to a pattern."""
        return replace(self, pattern=pattern)

    def needs_no_tensor(self, n_queries: int, n_keys: int) -> bool:
        """Whether a kernel's own `is_causal` flag, or nothing at all, says everything that this mask says."""
        if self.key_lengths is not None or self.visible is not None or self.bias is not None:
            return False
        if self.pattern is not None and n_keys > self.pattern.dense_length:
            return False
        return not self.is_causal or n_queries in (1, n_keys)

    def build_tensor(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor | None:
        """(batch or 1, 1, n_queries, n_keys) booleans, True where a query sees a key; None where all see all."""
        allowed = self.visible
        if self.is_causal or self.pattern is not None:
            by_position = self._build_by_position(n_queries, n_keys, device)
            allowed = by_position if allowed is None else allowed & by_position
        if self.key_lengths is not None:
            real = (torch.arange(n_keys, device=device) < self.key_lengths[:, None])[:, None, None]
            allowed = real if allowed is None else allowed & real
        return allowed

    def _build_by_position(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor:
        """(1, 1, n_queries, n_keys) booleans: what the places of queries and keys allow."""
        queries = torch.arange(n_keys - n_queries, n_keys, device=device)[:, None]
        keys = torch.arange(n_keys, device=device)
        if self.pattern is None:
            return (queries >= keys)[None, None]
        seen = self.pattern.build_token_mask(queries, keys, within=n_keys)
        return (seen & (queries >= keys) if self.is_causal else seen)[None, None]


def padding_bias(lengths: Tensor, longest: int) -> Tensor:
    """(rows, longest): -inf where a row of so many positions has ended, else zero; float32."""
    is_padding = torch.arange(longest, device=lengths.device) >= lengths[:, None]
    return torch.zeros(is_padding.shape, device=lengths.device).masked_fill_(is_padding, -torch.inf)
