"""The two models, both stacks of `Block`: a decoder-only language model and an encoder-decoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lm.config.model import ModelConfig
from lm.model.block import BlockCache, Stack, initialise
from lm.model.linear import linear
from lm.model.masks import Mask
from lm.model.positions import Embedding, LinearBiases, RotaryPositions, Rotation


class DecoderCache:
    """Keys and values of all the blocks of a decoder."""

    def __init__(self, n_layers: int) -> None:
        self.blocks = [BlockCache() for _ in range(n_layers)]

    @property
    def length(self) -> int:
        """Positions fed so far."""
        return self.blocks[0].attention.length

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was, in every block."""
        for block in self.blocks:
            block.attention.reorder(rows)
            block.cross_attention.reorder(rows)

    def select(self, positions: Tensor) -> None:
        """Keep only some positions of each row, (batch, kept), in every block; what was read of a memory stays."""
        for block in self.blocks:
            block.attention.select(positions)

    def truncate(self, length: int) -> None:
        """Forget the positions from `length` on; what was read of a memory stays."""
        for block in self.blocks:
            block.attention.truncate(length)


class Transformer(nn.Module):
    """What both models share: a target embedding, a stack of decoder blocks, and an output layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config, config.vocab_size)
        self.rotary = RotaryPositions(config) if config.positions == "rotary" else None
        self.biases = LinearBiases(config) if config.positions == "alibi" else None
        self.decoder = Stack(config, config.n_layers, cross_attention=config.is_encoder_decoder)
        self.head = None if config.tie_embeddings else nn.Linear(config.d_model, config.vocab_size, bias=False)

    def new_cache(self) -> DecoderCache:
        """An empty cache for decoding step by step."""
        return DecoderCache(self.config.n_layers)

    @property
    def output_weight(self) -> Tensor:
        """(vocabulary, d_model): the output layer, which may be the token embedding."""
        return self.embedding.tokens.weight if self.head is None else self.head.weight

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, d_model) -> (…, vocabulary), `capped` as the config says."""
        return capped(linear(hidden, self.output_weight), self.config.softcap)

    def rotation(self, tokens: Tensor, *, start: int = 0) -> Rotation | None:
        """The rotary positions of (batch, length) ids at start …, if this model has them."""
        return None if self.rotary is None else self.rotary(start, tokens.shape[1], tokens.device)


def capped(logits: Tensor, cap: float) -> Tensor:
    """cap·tanh(logits / cap), in float32 at least; a cap of 0 leaves them alone.

    Source: Gemma Team 2024 (Gemma 2), section 2.
    """
    if not cap:
        return logits
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).div(cap).tanh_() * cap


class DecoderOnly(Transformer):
    """A GPT: tokens in, the logits of the next token at each position out."""

    def hidden(self, tokens: Tensor, *, cache: DecoderCache | None = None) -> Tensor:
        """(batch, length) ids, after those in the cache -> (batch, length, d_model) final states."""
        start = cache.length if cache else 0
        rotation = self.rotation(tokens, start=start)
        x = self.embedding(tokens, start=start)
        length = tokens.shape[1]
        bias = None if self.biases is None else self.biases(length, start + length, tokens.device)
        mask = Mask.causal(bias=bias)
        return self.decoder(x, mask=mask, rotation=rotation, cache=cache.blocks if cache else None)

    def forward(self, tokens: Tensor, *, cache: DecoderCache | None = None) -> Tensor:
        """(batch, length) ids, after those in the cache -> (batch, length, vocabulary) logits."""
        return self.logits(self.hidden(tokens, cache=cache))


class EncoderDecoder(Transformer):
    """The transformer of 2017: a source is encoded, and a target decoded that attends to it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.source_embedding = (
            None if config.source_vocab_size is None else Embedding(config, config.source_vocab_size)
        )
        self.encoder = Stack(config, config.n_encoder_layers)

    def encode(self, source: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """(batch, source length) ids, the first `lengths` (batch,) of them real -> (batch, source length, d_model)."""
        embedding = self.embedding if self.source_embedding is None else self.source_embedding
        rotation = self.rotation(source)
        return self.encoder(embedding(source), mask=Mask.keys(lengths), rotation=rotation)

    def hidden(
        self, target: Tensor, *, memory: Tensor, lengths: Tensor | None = None, cache: DecoderCache | None = None
    ) -> Tensor:
        """(batch, length) target ids, after those in the cache -> (batch, length, d_model) final states.

        Args:
            target: the ids so far (teacher forcing: the whole target, shifted right).
            memory: (batch, source length, d_model) from `encode`.
            lengths: (batch,) real source lengths.
            cache: extended in place.
        """
        start = cache.length if cache else 0
        return self.decoder(
            self.embedding(target, start=start),
            mask=Mask.causal(),
            memory=memory,
            memory_mask=Mask.keys(lengths),
            rotation=self.rotation(target, start=start),
            cache=cache.blocks if cache else None,
        )

    def read(self, source: Tensor, target: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """(batch, source length) and (batch, target length) ids -> (batch, target length, d_model) final states."""
        return self.hidden(target, memory=self.encode(source, lengths=lengths), lengths=lengths)

    def forward(self, source: Tensor, target: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """(batch, source length) and (batch, target length) ids -> (batch, target length, vocabulary) logits."""
        return self.logits(self.read(source, target, lengths=lengths))


def build_model(config: ModelConfig, *, seed: int = 0) -> DecoderOnly | EncoderDecoder:
    """A model with freshly drawn weights, the same for the same seed; torch's own generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = EncoderDecoder(config) if config.is_encoder_decoder else DecoderOnly(config)
        initialise(model, config)
    return model
