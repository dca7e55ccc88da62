"""Where the words of a source stand in its dependency tree: how deep, and how far from each other.

Tokens come with three numbers, as `lm.text.dependency_trees.compute_tree_positions` gives them for their words: the
depth, the number, and the number after the last word below. Special tokens have -1 for each: they stand outside the
tree.

Source: Wang et al. 2019, section 3. They give the end of a sentence the depth after the greatest, and leave open how it
is related to the words; here it is as if it stood on a branch of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from lm.config.model import ModelConfig
from lm.model.attention_inputs import AttentionInputs
from lm.model.layers import Linear
from lm.model.module import Module
from lm.model.positions import ABSOLUTE_SCHEMES, RelativeEmbeddingTables, sinusoidal_encoding

CombineEmbeddings = Callable[[Tensor | None], Tensor]
"""The vectors of positions in the sentence, if there are any, to those that are added to embeddings in their place."""


class SyntaxPositions(Module):
    """What an encoder knows of trees: depths, distances, or both."""

    part = "positions"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.depths = TreeDepths(config) if config.has_tree_depths else None
        self.distances = TreeDistances(config) if config.has_tree_distances else None

    def combine(self, places: Tensor) -> CombineEmbeddings | None:
        """What depths make of the positions of an embedding, given (batch, length, 3) places."""
        return None if self.depths is None else partial(self.depths, token_depths(places))

    def add_distances(self, inputs: AttentionInputs, places: Tensor) -> AttentionInputs:
        """The scope of the tokens at (batch, length, 3) places, with what their distances add."""
        return inputs if self.distances is None else self.distances(inputs, places)


def zero_padding(places: Tensor, lengths: Tensor | None) -> Tensor:
    """(batch, length, 3) places, of which only the first `lengths` (batch,) are real: what follows is no deeper."""
    if lengths is None:
        return places
    is_real = torch.arange(places.shape[1], device=places.device) < lengths[:, None]
    return places * is_real[..., None]


def token_depths(places: Tensor) -> Tensor:
    """(batch, length) how deep tokens at (batch, length, 3) places are; outside the tree, one deeper than any word."""
    depths = places[..., 0]
    return torch.where(depths < 0, depths.amax(1, keepdim=True).clamp(min=0) + 1, depths)


class TreeDepths(Module):
    """Sinusoids of depths beside the vectors of sequential positions, mixed by a layer: tanh(W [order; depth] + b).

    Without vectors of order, as with rotary positions, there is the depth alone.

    Source: Wang et al. 2019, section 3.2, where the nonlinear function is not named.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        of_order = config.d_model if config.positions in ABSOLUTE_SCHEMES else 0
        self.d_model = config.d_model
        self.mix = Linear(of_order + config.d_model, config.d_model, std=config.init_std)

    def forward(self, depths: Tensor, of_order: Tensor | None) -> Tensor:
        """(batch, length) depths and (length, d_model) vectors of order -> (batch, length, d_model)."""
        vectors = sinusoidal_encoding(depths.to(self.mix.weight.dtype), self.d_model, interleaved=True)
        if of_order is not None:
            vectors = torch.cat((of_order.to(vectors.dtype).expand_as(vectors), vectors), dim=-1)
        return self.mix(vectors).tanh()


class TreeDistances(RelativeEmbeddingTables):
    """Learned vectors for keys and values by how their words are related in the tree, for each layer and head.

    They are added to those of sequential distances where there are some: any linear function of the two, which is what
    the paper takes, is a sum of two other tables.

    Source: Wang et al. 2019, section 3.1; tables as of Shaw et al. 2018.
    """

    def __init__(self, config: ModelConfig) -> None:
        farthest = config.max_tree_distance
        super().__init__(config, config.n_encoder_layers, before=farthest, after=farthest)

    def forward(self, inputs: AttentionInputs, places: Tensor) -> AttentionInputs:
        """The scope of the tokens at (batch, length, 3) places, with the tables of each layer."""
        return self.add_to(inputs, tree_distances(places))


def tree_distances(places: Tensor) -> Tensor:
    """How each key is related to each query in the tree.

    Of two words one of which is below the other, by one edge or by several, it is the depth of the key less that of the
    query: the length of the path between them, negative where the key is above. Of all others it is the sum of their
    depths, negative where the key comes first in the sentence. Tokens of one word are at distance zero.

    Args:
        places: (batch, length, 3).

    Returns:
        (batch, queries, keys).

    Source: Wang et al. 2019, section 3.1, with the sign of `AttentionInputs.distances`.
    """
    depths, (_, first, end) = token_depths(places), places.unbind(-1)
    is_below = (first[:, :, None] <= first[:, None, :]) & (first[:, None, :] < end[:, :, None])  # the key, or the same
    order = torch.arange(places.shape[1], device=places.device)
    aside = (order - order[:, None]).sign() * (depths[:, None, :] + depths[:, :, None])
    return torch.where(is_below | is_below.transpose(1, 2), depths[:, None, :] - depths[:, :, None], aside)
