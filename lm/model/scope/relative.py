"""Relative positions of keys and values: a learned vector for each distance is added to what lies at that distance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RelativeTables:
    """The vectors of one layer that are added to its keys and values, as far as each lies from the query.

    Neither sum is ever made: a query is multiplied by each vector once, and the products are handed to the keys; the
    weights of the keys are summed by distance, and the sums weigh the vectors.

    Attributes:
        rows: (batch or 1, 1, queries, keys) which row of the tables belongs to each pair.
        keys: (kv_heads, distances, head).
        values: like `keys`.
        also: what another kind of distance adds besides.

    Source: Shaw et al. 2018, equations 3 and 4, and section 3.3.
    """

    rows: Tensor
    keys: Tensor
    values: Tensor
    also: RelativeTables | None = None

    def scores(self, query: Tensor) -> Tensor:
        """What the keys' vectors add to the scores of (batch, heads, queries, head): (batch, heads, queries, keys)."""
        products = _by_group(query * query.shape[-1] ** -0.5, self.keys.transpose(-1, -2))
        scores = products.gather(-1, self._rows_of(products))
        return scores if self.also is None else scores + self.also.scores(query)

    def output(self, weights: Tensor) -> Tensor:
        """What (batch, heads, queries, keys) weights give of the values' vectors: (batch, heads, queries, head).

        Weights are summed in float32 at least: many keys share the rows of the greatest distances.
        """
        exact = weights.to(torch.promote_types(weights.dtype, torch.float32))
        summed = exact.new_zeros(*weights.shape[:-1], self.values.shape[1])
        summed = summed.scatter_add(-1, self._rows_of(weights), exact)
        output = _by_group(summed.to(weights.dtype), self.values)
        return output if self.also is None else output + self.also.output(weights)

    def _rows_of(self, of_pairs: Tensor) -> Tensor:
        batch, heads = of_pairs.shape[:2]
        return self.rows.expand(batch, heads, -1, -1)


def _by_group(x: Tensor, tables: Tensor) -> Tensor:
    """(batch, heads, queries, n) times the (kv_heads, n, m) of each head's group -> (batch, heads, queries, m)."""
    batch, heads, queries, n = x.shape
    with torch.autocast(x.device.type, enabled=False):
        grouped = x.reshape(batch, len(tables), -1, n) @ tables.to(x.dtype)
    return grouped.view(batch, heads, queries, -1)
