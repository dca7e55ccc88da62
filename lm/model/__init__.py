"""The transformer as PyTorch modules: the block, stacks of blocks, decoder-only, encoder-only and encoder-decoder.

Uses `attention`, `layers` and `positions`. `loss` is the chunked cross-entropy, `lora` adapters, `cost` FLOPs and
parameters. Variants from the literature have a module each: `experts`, `recurrent`, `block_sparse`, `compressed` and
`tree_positions`; none is needed to read the others. Nothing here imports tokenizers, data, engines or training.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from lm.config.model import ModelConfig
from lm.model.attention import AttentionInputs, DecoderCache, LayerKVCache, Mask, MultiHeadAttention
from lm.model.block_sparse import BlockSparseAttention, build_pattern
from lm.model.compressed import LinformerAttention, MemoryCompressedAttention
from lm.model.experts import MixtureOfExperts
from lm.model.layers import (
    ClassificationHead,
    Dropout,
    FeedForward,
    Linear,
    OutputTransform,
    TokenEmbedding,
    build_norm,
    initialise,
)
from lm.model.positions import InputEmbedding, build_relative_positions
from lm.model.recurrent import RecurrentCache, RecurrentDecoder, RecurrentEncoder
from lm.model.tree_positions import TreePositionEncoding


class Block(nn.Module):
    """The transformer block: self-attention, optional cross-attention, and feed-forward, with residual connections.

    The feed-forward layer may be a mixture of experts.

    Source: Vaswani et al. 2017, section 3.1 (post-norm); Radford et al. 2019 (pre-norm); Black et al. 2022, section 2.1
    (GPT-NeoX-20B: parallel, with a norm for each).
    """

    def __init__(
        self, config: ModelConfig, *, layer: int = 0, cross_attention: bool = False, is_causal: bool = True
    ) -> None:
        """Build the block of a layer, counted from 0 in its stack; only encoders are not causal."""
        super().__init__()
        self.norm_first = config.norm_position == "pre"
        self.is_parallel = config.parallel_residual
        self.attention_norm = build_norm(config)
        self.attention = build_self_attention(config, layer=layer, is_causal=is_causal)
        self.cross_attention_norm = build_norm(config) if cross_attention else None
        self.cross_attention = MultiHeadAttention(config, layer=layer, is_cross=True) if cross_attention else None
        self.feed_forward_norm = build_norm(config)
        self.feed_forward = MixtureOfExperts(config) if config.has_experts(layer) else FeedForward(config)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, inputs: AttentionInputs, cross_inputs: AttentionInputs | None = None) -> Tensor:
        """Transform the hidden states.

        Args:
            x: (batch, length, d_model).
            cross_inputs: of cross-attention, in a block that has it.

        Returns:
            (batch, length, d_model).
        """
        if self.is_parallel:
            attended = self.attention(self.attention_norm(x), inputs)
            fed = self.feed_forward(self.feed_forward_norm(x), inputs)
            return x + self.dropout(attended) + self.dropout(fed)
        x = self._residual(x, self.attention_norm, self.attention, inputs)
        if self.cross_attention is not None and self.cross_attention_norm is not None:
            x = self._residual(x, self.cross_attention_norm, self.cross_attention, cross_inputs)
        return self._residual(x, self.feed_forward_norm, self.feed_forward, inputs)

    def _residual(self, x: Tensor, norm: nn.Module, sublayer: nn.Module, seen: AttentionInputs | None) -> Tensor:
        if self.norm_first:
            return x + self.dropout(sublayer(norm(x), seen))
        return norm(x + self.dropout(sublayer(x, seen)))


class Stack(nn.Module):
    """A stack of blocks, with a final norm after pre-norm blocks."""

    def __init__(
        self, config: ModelConfig, n_layers: int, *, cross_attention: bool = False, is_causal: bool = True
    ) -> None:
        """Build `n_layers` blocks; only encoders are not causal."""
        super().__init__()
        self.positions = build_relative_positions(config, n_layers, is_causal=is_causal)
        self.blocks = nn.ModuleList(
            Block(config, layer=layer, cross_attention=cross_attention, is_causal=is_causal)
            for layer in range(n_layers)
        )
        self.final_norm = build_norm(config) if config.norm_position == "pre" else nn.Identity()
        self.activation_checkpointing, self.is_causal = False, is_causal

    def forward(self, x: Tensor, inputs: AttentionInputs, cross_inputs: AttentionInputs | None = None) -> Tensor:
        """Transform (batch, length, d_model) embeddings, block by block; see `Block.forward`."""
        if self.positions is not None:
            inputs = self.positions(inputs, x.shape[1], x.device)
        inputs = replace(inputs, first_layer_values=[])
        for block in self.blocks:
            if self.activation_checkpointing and torch.is_grad_enabled():
                x = checkpoint(block, x, inputs, cross_inputs, use_reentrant=False)
            else:
                x = block(x, inputs, cross_inputs)
        return self.final_norm(x)

    def attention_layers(self, *, cross: bool = False) -> list[MultiHeadAttention]:
        """Return the self-attention of each block, or its cross-attention."""
        layers = [block.cross_attention if cross else block.attention for block in self.blocks]
        return [attention for attention in layers if isinstance(attention, MultiHeadAttention)]

    def new_cache(self) -> DecoderCache:
        return DecoderCache([LayerKVCache() for _ in self.blocks])


def set_activation_checkpointing(model: nn.Module, *, enabled: bool) -> None:
    """Turn activation checkpointing on or off: the backward pass recomputes the activations of each block.

    Source: Chen et al. 2016.
    """
    for module in model.modules():
        if isinstance(module, Stack):
            module.activation_checkpointing = enabled


def count_parameters(module: nn.Module) -> int:
    """Count the parameters, shared ones once and int8 weights included."""
    int8_weights = (buffer for buffer in module.buffers() if buffer.dtype is torch.int8)
    return sum(tensor.numel() for tensor in chain(module.parameters(), int8_weights))


def build_self_attention(config: ModelConfig, *, layer: int, is_causal: bool) -> MultiHeadAttention:
    """Build the self-attention of a layer, counted from 0 in its stack; only encoders are not causal."""
    if (pattern := build_pattern(config, layer, is_causal=is_causal)) is not None:
        return BlockSparseAttention(config, pattern, layer=layer)
    if config.has_compressed_attention(layer):
        return MemoryCompressedAttention(config, layer=layer, is_causal=is_causal)
    if config.attention == "linformer" and not is_causal:
        return LinformerAttention(config, layer=layer)
    return MultiHeadAttention(config, layer=layer)


class Transformer(nn.Module):
    """The base of all models: input embedding, layers and output layer.

    The layers are called the decoder, also in an encoder-only model.

    Attributes:
        ensemble: further models, whose probabilities are averaged with this one's in evaluation, scoring and decoding.
    """

    output_modules: ClassVar[tuple[str, ...]] = ("head", "transform", "output_bias")
    """Attributes with weights of the output, whichever of them a model has."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = InputEmbedding(config, config.vocab_size)
        self.decoder = (
            RecurrentDecoder(config)
            if config.is_recurrent
            else Stack(
                config,
                config.n_layers,
                cross_attention=config.is_encoder_decoder,
                is_causal=not config.is_masked,
            )
        )
        predicts_tokens, std = not config.labels, 0.0 if config.zero_init else config.init_std
        has_head = predicts_tokens and not config.tie_embeddings
        self.head = Linear(config.d_model, config.vocab_size, bias=False, std=std) if has_head else None
        transforms = predicts_tokens and config.output_transform
        self.transform = OutputTransform(config) if transforms else None
        has_bias = transforms or (predicts_tokens and config.output_bias)
        self.output_bias = nn.Parameter(torch.empty(config.vocab_size)) if has_bias else None
        alone = config.replace(members=1)
        self.ensemble = nn.ModuleList(type(self)(alone) for _ in range(config.members - 1))

    def initialise(self) -> None:
        if self.output_bias is not None:
            nn.init.zeros_(self.output_bias)

    def new_cache(self) -> DecoderCache | RecurrentCache:
        return self.decoder.new_cache()

    def decode(self, tokens: Tensor, inputs: AttentionInputs, cross_inputs: AttentionInputs | None = None) -> Tensor:
        """Compute the final states of target tokens, as the output layer reads them.

        Args:
            tokens: (batch, length) IDs, after those in the caches.
            cross_inputs: of cross-attention, in an encoder-decoder.

        Returns:
            (batch, length, d_model).
        """
        x = self.decoder(self.embedding(tokens, inputs), inputs, cross_inputs)
        return x if self.transform is None else self.transform(x)

    def select_output_weights(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Select the weights of the output modules by name, also from another model's weights."""
        names = {name: re.sub(r"^ensemble\.\d+\.", "", name) for name in weights}
        return {name: weights[name] for name, own in names.items() if own.partition(".")[0] in self.output_modules}

    @property
    def output(self) -> Linear | TokenEmbedding:
        """The output matrix, which may be the token embedding."""
        return self.embedding.tokens if self.head is None else self.head

    @property
    def members(self) -> tuple[Any, ...]:
        """The models of the ensemble that this one begins; without one, itself."""
        return (self, *self.ensemble)

    def add_members(self, other: Transformer) -> None:
        """Make the members of another ensemble members of this one."""
        self.ensemble.extend(other.members)
        other.ensemble = nn.ModuleList()

    @property
    def output_layer(self) -> tuple[Tensor, Tensor | None]:
        """The (vocabulary, d_model) weights and the (vocabulary,) bias, if any; a classifier has a row per label."""
        bias = getattr(self.output, "bias", None) if self.output_bias is None else self.output_bias
        return self.output.weight, bias

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, d_model) -> (…, vocabulary), with soft-capping as configured.

        The states are flattened to a matrix: with a slice of positions torch would copy the weights for each row. One
        state, 50,257 by 768 weights in bfloat16, one thread of an AMD EPYC: 208 ms, and 5 as a matrix.
        """
        _, bias = self.output_layer
        logits = self.output.matmul(hidden.reshape(-1, hidden.shape[-1]), bias)
        return soft_cap(logits.view(*hidden.shape[:-1], logits.shape[-1]), self.config.softcap)


def average_predictions(logits: Sequence[Tensor]) -> Tensor:
    """Return the logits of one model, or of an ensemble the log-probabilities of its mean distribution.

    Source: Sutskever et al. 2014, section 3.6.
    """
    if len(logits) == 1:
        return logits[0]
    size = min(each.shape[-1] for each in logits)  # some vocabularies are padded
    logprobs = torch.stack([each[..., :size].float().log_softmax(-1) for each in logits])
    return logprobs.logsumexp(0) - math.log(len(logits))


def soft_cap(logits: Tensor, cap: float) -> Tensor:
    """Compute cap·tanh(logits / cap) in float32 or better; a cap of 0 changes nothing.

    Source: Gemma Team 2024 (Gemma 2), section 2.
    """
    if not cap:
        return logits
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).div(cap).tanh_() * cap


def _causal_inputs(cache: DecoderCache | RecurrentCache | None, lengths: Tensor | None) -> AttentionInputs:
    """The self-attention inputs of a target: causal, after the cached tokens; `lengths` (batch,) excludes padding."""
    if cache is None:
        return AttentionInputs(mask=Mask(is_causal=True), lengths=lengths)
    return AttentionInputs(mask=Mask(is_causal=True), caches=cache.self_attention, start=cache.length, lengths=lengths)


class DecoderOnly(Transformer):
    """A decoder-only model (GPT): tokens in, next-token logits out.

    If trained on sentence pairs it translates: source and target are one sequence. Source: Liu et al. 2018
    (Transformer-D), section 4.2.3.
    """

    def hidden(
        self,
        tokens: Tensor,
        *,
        cache: DecoderCache | RecurrentCache | None = None,
        target_lengths: Tensor | None = None,
    ) -> Tensor:
        """(batch, length) IDs, after those in the cache -> (batch, length, d_model) final states.

        Args:
            cache: extended in place.
            target_lengths: (batch,) real IDs, where padding follows them.
        """
        return self.decode(tokens, _causal_inputs(cache, target_lengths))

    def forward(self, tokens: Tensor, *, cache: DecoderCache | RecurrentCache | None = None) -> Tensor:
        """(batch, length) IDs, after those in the cache -> (batch, length, vocabulary) logits."""
        return self.logits(self.hidden(tokens, cache=cache))


class EncoderOnly(Transformer):
    """An encoder-only model (BERT): partly masked tokens in, logits of the original tokens out.

    With labels it is a classifier: a text in, label logits out.

    Source: Devlin et al. 2019.
    """

    output_modules: ClassVar[tuple[str, ...]] = (*Transformer.output_modules, "classifier")

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.classifier = ClassificationHead(config) if config.labels else None

    @property
    def output(self) -> Linear | TokenEmbedding:
        return super().output if self.classifier is None else self.classifier.labels

    def hidden(self, tokens: Tensor, *, target_lengths: Tensor | None = None) -> Tensor:
        """(batch, length) IDs, the first `target_lengths` (batch,) of them real -> (batch, length, d_model) states.

        A classifier returns one state per text: (batch, 1, d_model).
        """
        x = self.decode(tokens, AttentionInputs(mask=Mask(key_lengths=target_lengths), lengths=target_lengths))
        return x if self.classifier is None else self.classifier(x)

    def forward(self, tokens: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """(batch, length) IDs -> (batch, length, vocabulary) logits; from a classifier (batch, 1, labels)."""
        return self.logits(self.hidden(tokens, target_lengths=lengths))


class EncoderDecoder(Transformer):
    """An encoder-decoder model; with transformer blocks the original transformer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.source_embedding = (
            None if config.source_vocab_size is None else InputEmbedding(config, config.source_vocab_size)
        )
        self.encoder = (
            RecurrentEncoder(config) if config.is_recurrent else Stack(config, config.n_encoder_layers, is_causal=False)
        )
        self.syntax_positions = None if config.syntax == "none" else TreePositionEncoding(config)

    def encode(self, source: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """(batch, source length) IDs, the first `lengths` (batch,) of them real -> (batch, source length, d_model).

        A model with `syntax` reads (batch, source length, 4): each ID with its word's position in a dependency tree,
        zeros beyond `lengths`.
        """
        embedding = self.embedding if self.source_embedding is None else self.source_embedding
        inputs = AttentionInputs(mask=Mask(key_lengths=lengths), lengths=lengths)
        if self.syntax_positions is None:
            return self.encoder(embedding(source, inputs), inputs)
        ids, tree_positions = source[..., 0], source[..., 1:]
        x = embedding(ids, inputs, combine=self.syntax_positions.position_combiner(tree_positions))
        return self.encoder(x, self.syntax_positions.add_distances(inputs, tree_positions))

    def hidden(
        self,
        target: Tensor,
        *,
        encoder_output: Tensor,
        lengths: Tensor | None = None,
        cache: DecoderCache | RecurrentCache | None = None,
        target_lengths: Tensor | None = None,
    ) -> Tensor:
        """(batch, length) target IDs, after those in the cache -> (batch, length, d_model) final states.

        Args:
            target: the IDs so far (teacher forcing: the whole target, shifted right).
            encoder_output: (batch, source length, d_model) from `encode`.
            lengths: (batch,) real source lengths.
            cache: extended in place.
            target_lengths: (batch,) real target IDs, where padding follows them.
        """
        source = AttentionInputs(
            mask=Mask(key_lengths=lengths),
            encoder_output=encoder_output,
            caches=None if cache is None else cache.cross_attention,
        )
        return self.decode(target, _causal_inputs(cache, target_lengths), source)

    def encode_decode(
        self,
        source: Tensor,
        target: Tensor,
        *,
        lengths: Tensor | None = None,
        target_lengths: Tensor | None = None,
    ) -> Tensor:
        """Encode (batch, source length) and decode (batch, target length) IDs -> (batch, target length, d_model)."""
        encoder_output = self.encode(source, lengths=lengths)
        return self.hidden(target, encoder_output=encoder_output, lengths=lengths, target_lengths=target_lengths)

    def forward(self, source: Tensor, target: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """(batch, source length) and (batch, target length) IDs -> (batch, target length, vocabulary) logits."""
        return self.logits(self.encode_decode(source, target, lengths=lengths))


Model = DecoderOnly | EncoderOnly | EncoderDecoder
"""Any model."""


def build_model(config: ModelConfig, *, seed: int = 0) -> Model:
    """Build a model with weights that depend on the seed alone; torch's generator state is restored."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        kind = EncoderDecoder if config.is_encoder_decoder else EncoderOnly if config.is_masked else DecoderOnly
        model: Model = kind(config)
        initialise(model)
    return model


@contextmanager
def init_empty_weights() -> Iterator[None]:
    """Build models on the meta device, without weights, until weights are assigned.

    No numbers are drawn: on that device torch would load its compiler for it, which takes a second.
    """
    with torch.device("meta"), _SkipInit():
        yield


class _SkipInit(TorchFunctionMode):
    """Makes functions of `torch.nn.init` leave tensors as they are."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))
