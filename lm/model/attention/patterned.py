"""Self-attention within a pattern: block by block where that pays, else with a mask."""

from __future__ import annotations

from torch import Tensor

from lm.config.model import ModelConfig
from lm.model.attention.attention import MultiHeadAttention, attend
from lm.model.attention.block_attention import BlockAttention, blocks_pay
from lm.model.scope.masks import Mask
from lm.model.scope.patterns import Pattern
from lm.model.scope.relative import RelativeTables
from lm.model.scope.scope import Scope


class PatternedAttention(MultiHeadAttention):
    """Self-attention in which each position sees what a pattern lets it see.

    The block-wise computation serves whole sequences. With a cache the queries are few, and keys that come before all
    that they see are left out.
    """

    def __init__(self, config: ModelConfig, pattern: Pattern, *, layer: int = 0) -> None:
        super().__init__(config, layer=layer, value_residual=config.value_residual)
        self.pattern = pattern

    def attended(self, query: Tensor, key: Tensor, value: Tensor, scope: Scope) -> Tensor:
        """What (batch, heads, length, head) queries find in the values: as many."""
        length, is_causal = query.shape[2], scope.mask.is_causal
        in_line = length == key.shape[2] and scope.branches == 1 and scope.mask.bias is None
        if in_line and blocks_pay(self.pattern, length, is_causal=is_causal):
            blocks = BlockAttention(self.pattern, scope.mask, scope.by_distance, self.layer, self.dropped)
            return blocks(query, key, value)
        first = self.pattern.earliest(scope.start) if scope.key_positions is None else 0
        mask, relative = self._seen(query, scope, first=first)
        key, value = key[:, :, first:], value[:, :, first:]
        return attend(query, key, value, mask=mask, dropout=self.dropped, relative=relative)

    def mask(self, query: Tensor, scope: Scope) -> Mask:
        """Which keys each query sees, and what their distances add to its scores."""
        return self._seen(query, scope, first=0)[0]

    def _seen(self, query: Tensor, scope: Scope, *, first: int) -> tuple[Mask, RelativeTables | None]:
        """Which keys from `first` on each query sees, and what their distances add to scores and values."""
        length, end = query.shape[2], scope.start + query.shape[2] // scope.branches
        if scope.by_distance is None and scope.key_positions is None and length == end - first:
            return scope.mask.within(self.pattern), None
        distances = scope.distances(length, query.device)[..., first:]
        queries = scope.positions(length, query.device)[..., None]
        pairs = self.pattern.sees(queries, queries + distances, within=end)
        if scope.mask.is_causal:
            pairs = pairs & (distances <= 0)
        if scope.mask.key_lengths is not None:
            pairs = pairs & (queries + distances < scope.mask.key_lengths[:, None, None])
        mask = Mask(pairs=pairs[:, None], bias=scope.mask.bias)
        if scope.by_distance is None:
            return mask, None
        bias, relative = scope.by_distance.between(query, distances, layer=self.layer)
        return mask.with_bias(bias), relative
