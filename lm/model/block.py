"""The one transformer block, of encoders, decoders and GPTs."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import chain
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lm.config.model import ModelConfig
from lm.model.attention import CrossAttention, MultiHeadAttention
from lm.model.attention_inputs import DecoderCache, FirstValues, Scope
from lm.model.layers import Dropout, FeedForward, make_norm
from lm.model.module import Module
from lm.model.positions import relative_positions
from lm.model.variants.block_sparse import PatternedAttention, pattern_of
from lm.model.variants.compressed import CompressedAttention
from lm.model.variants.experts import Experts
from lm.model.variants.low_rank import LowRankAttention


class Block(Module):
    """Self-attention, cross-attention to a memory if asked, and a feed-forward layer, each with a residual connection.

    In the place of the feed-forward layer there may be experts.

    Source: Vaswani et al. 2017, section 3.1 (normalised after); Radford et al. 2019 (normalised before).
    """

    def __init__(
        self, config: ModelConfig, *, layer: int = 0, cross_attention: bool = False, is_causal: bool = True
    ) -> None:
        """The block of a layer, counted from 0 in its stack, which is causal but in an encoder."""
        super().__init__()
        self.norm_first = config.norm_position == "pre"
        self.is_parallel = config.parallel_residual
        self.attention_norm = make_norm(config)
        self.attention = self_attention(config, layer=layer, is_causal=is_causal)
        self.cross_attention_norm = make_norm(config) if cross_attention else None
        self.cross_attention = CrossAttention(config, layer=layer) if cross_attention else None
        self.feed_forward_norm = make_norm(config)
        self.feed_forward = Experts(config) if config.has_experts(layer) else FeedForward(config)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, own: Scope, memory: Scope | None = None) -> Tensor:
        """Transform each position by what it sees.

        Args:
            x: (batch, length, d_model).
            own: what self-attention sees.
            memory: what cross-attention sees, in a block that has it.

        Returns:
            (batch, length, d_model).
        """
        if self.is_parallel:
            return self._parallel(x, own)
        x = self._residual(x, self.attention_norm, self.attention, own)
        if self.cross_attention is not None and self.cross_attention_norm is not None:
            x = self._residual(x, self.cross_attention_norm, self.cross_attention, memory)
        return self._residual(x, self.feed_forward_norm, self.feed_forward, *self._seen(own))

    def _parallel(self, x: Tensor, own: Scope) -> Tensor:
        """Source: Wang and Komatsuzaki 2021 (GPT-J); with a norm for each, Black et al. 2022 (GPT-NeoX-20B)."""
        attended = self.attention(self.attention_norm(x), own)
        fed = self.feed_forward(self.feed_forward_norm(x), *self._seen(own))
        return x + self.dropout(attended) + self.dropout(fed)

    def _seen(self, own: Scope) -> tuple[Scope, ...]:
        """What the feed-forward layer is told of the positions: experts need to know which of them are real."""
        return (own,) if isinstance(self.feed_forward, Experts) else ()

    def _residual(self, x: Tensor, norm: nn.Module, sublayer: nn.Module, *seen: Scope | None) -> Tensor:
        """`x` and what a sublayer makes of it, given what it sees; normalised before or after."""
        if self.norm_first:
            return x + self.dropout(sublayer(norm(x), *seen))
        return norm(x + self.dropout(sublayer(x, *seen)))


class Stack(Module):
    """Blocks one after the other, with a last normalisation where blocks normalise first.

    With an embedding shortcut, each block reads a·x + b·embedding instead of x, with shares a and b of its own.
    Source: Jordan et al. 2024 (modded-nanogpt).
    """

    parts: ClassVar = {"stream_shares": "learned shares", "embedding_shares": "learned shares"}

    def __init__(
        self, config: ModelConfig, n_layers: int, *, cross_attention: bool = False, is_causal: bool = True
    ) -> None:
        """A stack of so many layers; an encoder's is not causal, and may have positions after a query."""
        super().__init__()
        self.positions = relative_positions(config, n_layers, is_causal=is_causal)
        self.blocks = nn.ModuleList(
            Block(config, layer=layer, cross_attention=cross_attention, is_causal=is_causal)
            for layer in range(n_layers)
        )
        self.final_norm = make_norm(config) if config.norm_position == "pre" else nn.Identity()
        self.stream_shares = nn.Parameter(torch.empty(n_layers)) if config.embedding_shortcut else None
        self.embedding_shares = nn.Parameter(torch.empty(n_layers)) if config.embedding_shortcut else None
        self.recomputes, self.is_causal = False, is_causal

    def initialise(self) -> None:
        """Start with the stream alone. Source: Jordan et al. 2024 (modded-nanogpt)."""
        if self.stream_shares is not None and self.embedding_shares is not None:
            nn.init.ones_(self.stream_shares)
            nn.init.zeros_(self.embedding_shares)

    def forward(self, x: Tensor, own: Scope, memory: Scope | None = None) -> Tensor:
        """Transform (batch, length, d_model) embeddings, block by block, by what `Block.forward` is given to see."""
        if self.positions is not None:
            own = self.positions(own, x.shape[1], x.device)
        own = replace(own, first_values=FirstValues())
        embedding = x
        for index, block in enumerate(self.blocks):
            if self.stream_shares is not None and self.embedding_shares is not None:
                x = self.stream_shares[index] * x + self.embedding_shares[index] * embedding
            if self.recomputes and torch.is_grad_enabled():
                x = checkpoint(block, x, own, memory, use_reentrant=False)
            else:
                x = block(x, own, memory)
        return self.final_norm(x)

    def attentions(self, *, cross: bool = False) -> list[MultiHeadAttention]:
        """The self-attention of each block, or its cross-attention."""
        found = [block.cross_attention if cross else block.attention for block in self.blocks]
        return [attention for attention in found if isinstance(attention, MultiHeadAttention)]

    def cross_attentions(self) -> list[CrossAttention]:
        """The cross-attention of each block, where blocks have it."""
        return [block.cross_attention for block in self.blocks if isinstance(block.cross_attention, CrossAttention)]

    def new_cache(self) -> DecoderCache:
        """An empty cache for decoding step by step."""
        return DecoderCache([attention.new_cache() for attention in self.attentions()])

    def cached_values(self) -> Fraction:
        """How many numbers its cache holds for each position."""
        return sum((attention.cached_values() for attention in self.attentions()), Fraction())

    def weights_per_source_position(self) -> float:
        """The weights that each position of a memory is multiplied by: keys and values of cross-attention."""
        return sum(each.weights_per_source_position() for each in self.cross_attentions())

    def attention_products(self, length: int, source_length: int) -> float:
        """Multiplications of queries with keys and of weights with values, of one sequence and of the source it reads.

        Each pair of positions takes two for each feature of all heads.
        """
        own, across = self.attentions(), self.cross_attentions()
        if not length:
            return 0.0
        pairs = sum(attention.pairs(length, is_causal=self.is_causal) for attention in own)
        return 2 * own[0].heads * own[0].head_size * (pairs + len(across) * length * source_length)


def recompute(model: nn.Module, *, if_training: bool) -> None:
    """Settle whether the backward pass computes again what is in each block, which then need not be kept for it.

    Source: Chen et al. 2016.
    """
    for stack in (module for module in model.modules() if isinstance(module, Stack)):
        stack.recomputes = if_training


def count_parameters(module: nn.Module) -> int:
    """The number of parameters, with shared ones counted once; weights of 8 bits are among them."""
    in_8_bits = (buffer for buffer in module.buffers() if buffer.dtype is torch.int8)
    return sum(tensor.numel() for tensor in chain(module.parameters(), in_8_bits))


def self_attention(config: ModelConfig, *, layer: int, is_causal: bool) -> MultiHeadAttention:
    """The self-attention of a layer, counted from 0 in its stack, which is causal but in an encoder."""
    if (pattern := pattern_of(config, layer, is_causal=is_causal)) is not None:
        return PatternedAttention(config, pattern, layer=layer)
    if config.compresses(layer):
        return CompressedAttention(config, layer=layer, is_causal=is_causal)
    if config.attention == "linformer" and not is_causal:
        return LowRankAttention(config, layer=layer)
    return MultiHeadAttention(config, layer=layer, value_residual=config.value_residual)
