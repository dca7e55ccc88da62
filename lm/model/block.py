"""The one transformer block, of encoders, decoders and GPTs."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lm.config.model import ModelConfig
from lm.model.attention import MultiHeadAttention
from lm.model.attention_inputs import FirstValues, Scope
from lm.model.cache import DecoderCache
from lm.model.layers import Dropout, FeedForward, make_norm
from lm.model.positions import relative_positions
from lm.model.quantised import int8_matrices
from lm.model.variants.block_sparse import PatternedAttention, pattern_of
from lm.model.variants.compressed import CompressedAttention
from lm.model.variants.experts import Experts
from lm.model.variants.low_rank import LowRankAttention


class Block(nn.Module):
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
        self.cross_attention = MultiHeadAttention(config, layer=layer) if cross_attention else None
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


class Stack(nn.Module):
    """Blocks one after the other, with a last normalisation where blocks normalise first.

    With an embedding shortcut, each block reads a·x + b·embedding instead of x, with shares a and b of its own.
    Source: Jordan et al. 2024 (modded-nanogpt).
    """

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
        self.recomputes = False

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

    def new_cache(self) -> DecoderCache:
        """An empty cache for decoding step by step."""
        return DecoderCache([attention.new_cache() for attention in self.attentions()])


def recompute(model: nn.Module, *, if_training: bool) -> None:
    """Settle whether the backward pass computes again what is in each block, which then need not be kept for it.

    Source: Chen et al. 2016.
    """
    for stack in (module for module in model.modules() if isinstance(module, Stack)):
        stack.recomputes = if_training


_VECTORS = {"value_shares": 0.5, "embedding_shares": 0.0, "output_bias": 0.0}
"""What vectors start at, by name; biases start at zero, and all others at one."""


def initialise(module: nn.Module, config: ModelConfig) -> None:
    """Draw the matrices from normal distributions, the same whatever vectors there are, which start at constants.

    Source of the shares: Zhou et al. 2024 and Jordan et al. 2024 (modded-nanogpt).
    """
    for name, parameter in module.named_parameters():
        kind = name.rpartition(".")[2]
        if parameter.ndim == 1:
            nn.init.constant_(parameter, 0.0 if kind.startswith("bias") else _VECTORS.get(kind, 1.0))
        else:
            nn.init.normal_(parameter, std=_standard_deviation(name, config))
    for layer in (layer for layer in module.modules() if isinstance(layer, nn.LSTM)):
        _open_forget_gates(layer)


def _open_forget_gates(layer: nn.LSTM) -> None:
    """Start by remembering: a bias of one for the second of the four gates. Source: Jozefowicz et al. 2015."""
    for name, parameter in layer.named_parameters():
        if name.startswith("bias_ih"):
            nn.init.constant_(parameter.detach()[layer.hidden_size : 2 * layer.hidden_size], 1.0)


def _standard_deviation(name: str, config: ModelConfig) -> float:
    """The standard deviation that a matrix starts with.

    It is smaller by √(2·layers), or zero, for the outputs of sublayers. Embeddings that are scaled by √d_model start at
    1/√d_model.

    Source: Radford et al. 2019, section 2.3; zeros for sublayers and the output layer: Zhang et al. 2019 (Fixup),
    section 3.
    """
    is_output = name.endswith(("output.weight", "down.weight"))
    if config.zero_init and (is_output or name == "head.weight"):
        return 0.0
    if is_output:
        layers = max(config.n_layers, config.n_encoder_layers)
        return config.initial_std / (2 * layers) ** 0.5
    if name.endswith("_lengthwise"):
        return config.context_length**-0.5
    if name.endswith("tokens.weight") and config.scale_embeddings:
        return config.d_model**-0.5
    return config.initial_std


def count_parameters(module: nn.Module) -> int:
    """The number of parameters, with shared ones counted once; weights of 8 bits are among them."""
    in_8_bits = (matrix.values for _, matrix in int8_matrices(module))
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
