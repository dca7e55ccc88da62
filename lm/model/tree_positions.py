"""Positions in the dependency tree of a source: depths of words, and distances between them.

Tokens come with three numbers, as `lm.text.parallel_text.compute_tree_positions` gives them for their words: the
depth, the index, and the index after the last word of the subtree. Special tokens have -1 for each: they are outside
the tree.

Source: Wang et al. 2019, section 3. They give the end of a sentence the maximum depth plus one, and leave open its
distances; here it is treated as a branch of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from lm.config.model import ModelConfig
from lm.model.attention import AttentionInputs
from lm.model.layers import Linear
from lm.model.positions import RelativeEmbeddingTables, sinusoidal_encoding


class TreePositionEncoding(nn.Module):
    """Tree positions of an encoder: depths, distances, or both.

    Embeddings of tree distances are added to those of sequential distances, if any: the paper takes a linear function
    of the two, which is a sum of two other tables.

    Source: Wang et al. 2019, section 3.1; tables as of Shaw et al. 2018.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.depths = TreeDepths(config) if config.syntax in {"depth", "both"} else None
        self.distances = None
        if config.has_tree_distances:
            farthest = config.max_tree_distance
            self.distances = RelativeEmbeddingTables(config, config.n_encoder_layers, before=farthest, after=farthest)

    def position_combiner(self, tree_positions: Tensor) -> Callable[[Tensor | None], Tensor] | None:
        """Return the function that combines depths with position vectors, given (batch, length, 3) tree positions."""
        return None if self.depths is None else partial(self.depths, token_depths(tree_positions))

    def add_distances(self, inputs: AttentionInputs, tree_positions: Tensor) -> AttentionInputs:
        """Add the embeddings of tree distances to the inputs, given (batch, length, 3) tree positions."""
        return inputs if self.distances is None else self.distances.add_to(inputs, tree_distances(tree_positions))


def token_depths(tree_positions: Tensor) -> Tensor:
    """Return (batch, length) depths from (batch, length, 3) tree positions; outside the tree, the maximum plus one."""
    depths = tree_positions[..., 0]
    return torch.where(depths < 0, depths.amax(1, keepdim=True).clamp(min=0) + 1, depths)


class TreeDepths(nn.Module):
    """Mixes sinusoids of depths with position vectors: tanh(W [position; depth] + b).

    Without position vectors, as with rotary positions, only the depth is used.

    Source: Wang et al. 2019, section 3.2, where the nonlinear function is not named.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        is_absolute = config.positions == "learned" or config.positions.startswith("sinusoidal")
        position_width = config.d_model if is_absolute else 0
        self.d_model = config.d_model
        self.mix = Linear(position_width + config.d_model, config.d_model, std=config.init_std)

    def forward(self, depths: Tensor, position_vectors: Tensor | None) -> Tensor:
        """(batch, length) depths and (length, d_model) position vectors -> (batch, length, d_model)."""
        vectors = sinusoidal_encoding(depths.float(), self.d_model, interleaved=True).to(self.mix.bias.dtype)
        if position_vectors is not None:
            vectors = torch.cat((position_vectors.to(vectors.dtype).expand_as(vectors), vectors), dim=-1)
        return self.mix(vectors).tanh()


def tree_distances(tree_positions: Tensor) -> Tensor:
    """Compute the tree distance of each key from each query.

    If one word is an ancestor of the other, it is the depth of the key minus that of the query: the path length,
    negative if the key is above. Otherwise it is the sum of their depths, negative if the key comes first. Tokens of
    one word have distance zero.

    Args:
        tree_positions: (batch, length, 3) tree positions.

    Returns:
        (batch, queries, keys).

    Source: Wang et al. 2019, section 3.1, with the sign of `AttentionInputs.compute_distances`.
    """
    depths, (_, first, end) = token_depths(tree_positions), tree_positions.unbind(-1)
    is_descendant = (first[:, :, None] <= first[:, None, :]) & (
        first[:, None, :] < end[:, :, None]
    )  # of keys, or themselves
    order = torch.arange(tree_positions.shape[1], device=tree_positions.device)
    unrelated = (order - order[:, None]).sign() * (depths[:, None, :] + depths[:, :, None])
    return torch.where(
        is_descendant | is_descendant.transpose(1, 2), depths[:, None, :] - depths[:, :, None], unrelated
    )
