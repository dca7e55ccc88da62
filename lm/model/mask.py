"""Attention masks: causality, padding, sparsity patterns and biases."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor


class SparsityPattern(Protocol):
    """A block-sparse attention pattern, without causality; hashable."""

    @property
    def block_size(self) -> int:
        """Positions per block."""

    @property
    def dense_length(self) -> int:
        """The longest sequence in which every position attends to every other."""

    @property
    def n_dense_blocks(self) -> int:
        """The number of leading query blocks that attend to every key."""

    def max_key_blocks(self, *, is_causal: bool) -> int:
        """The most key blocks that any other query block attends to."""

    def build_block_mask(self, n_blocks: int) -> Tensor:
        """Build (n_blocks, n_blocks) booleans: whether any query of a block attends to any key of another."""

    def build_token_mask(self, queries: Tensor, keys: Tensor, *, n_positions: int) -> Tensor:
        """Whether queries at given positions attend to keys at given positions; the arguments broadcast.

        All positions are less than `n_positions`.
        """

    def first_visible(self, query: int) -> int:
        """The first position that this query or a later one attends to."""


@dataclass(frozen=True)
class Mask:
    """Which keys each query may attend to. The parts restrict each other; with none, all queries attend to all keys.

    Queries are the last positions of the keys: with n_queries < n_keys (a KV cache), query i stands at position n_keys
    - n_queries + i.

    Attributes:
        is_causal: a query attends to its own position and earlier ones.
        key_lengths: (batch,) the number of real keys in each row; the rest is padding.
        visible: booleans, True where a query attends to a key, broadcastable to (batch, 1, queries, keys).
        bias: added to the scores, broadcastable to (batch, heads, queries, keys).
    """

    is_causal: bool = False
    key_lengths: Tensor | None = None
    pattern: SparsityPattern | None = None
    visible: Tensor | None = None
    bias: Tensor | None = None

    @classmethod
    def causal(cls, *, pattern: SparsityPattern | None = None, bias: Tensor | None = None) -> Mask:
        """A causal mask, with an optional sparsity pattern and bias."""
        return cls(is_causal=True, pattern=pattern, bias=bias)

    @classmethod
    def key_padding(cls, lengths: Tensor | None) -> Mask:
        """A padding mask: each query attends to the first `lengths[row]` keys of its row, or to all without lengths."""
        return cls(key_lengths=lengths)

    def with_bias(self, bias: Tensor) -> Mask:
        """Add a bias, broadcastable to (batch, heads, queries, keys)."""
        return replace(self, bias=bias if self.bias is None else self.bias + bias)

    def with_pattern(self, pattern: SparsityPattern) -> Mask:
        """Restrict the mask to a sparsity pattern."""
        return replace(self, pattern=pattern)

    def needs_no_tensor(self, n_queries: int, n_keys: int) -> bool:
        """Whether a kernel's own `is_causal` flag, or no mask at all, expresses this mask."""
        if self.key_lengths is not None or self.visible is not None or self.bias is not None:
            return False
        if self.pattern is not None and n_keys > self.pattern.dense_length:
            return False
        return not self.is_causal or n_queries in (1, n_keys)

    def build_tensor(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor | None:
        """Build (batch or 1, 1, n_queries, n_keys) booleans, True for visible pairs; None for a full mask."""
        allowed = self.visible
        if self.is_causal or self.pattern is not None:
            by_position = self._build_by_position(n_queries, n_keys, device)
            allowed = by_position if allowed is None else allowed & by_position
        if self.key_lengths is not None:
            is_real = (torch.arange(n_keys, device=device) < self.key_lengths[:, None])[:, None, None]
            allowed = is_real if allowed is None else allowed & is_real
        return allowed

    def _build_by_position(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor:
        """Build the (1, 1, n_queries, n_keys) booleans of causality and pattern."""
        queries = torch.arange(n_keys - n_queries, n_keys, device=device)[:, None]
        keys = torch.arange(n_keys, device=device)
        if self.pattern is None:
            return (queries >= keys)[None, None]
        visible = self.pattern.build_token_mask(queries, keys, n_positions=n_keys)
        return (visible & (queries >= keys) if self.is_causal else visible)[None, None]


def padding_bias(lengths: Tensor, longest: int) -> Tensor:
    """Build a (rows, longest) float32 bias: 0 for real positions, -inf for padding."""
    is_padding = torch.arange(longest, device=lengths.device) >= lengths[:, None]
    return torch.zeros(is_padding.shape, device=lengths.device).masked_fill_(is_padding, -torch.inf)
