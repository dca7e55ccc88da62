"""A transformers model trained with lm: one block, configured by `LMConfig`."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Cache, DynamicCache, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from .configuration_lm import LMConfig
from .positions_lm import LMAttentionInputs, LMRelativePositions, rotate, sinusoidal_positions

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "relu2": lambda x: F.relu(x).square(),
    "swiglu": lambda x: F.silu(x.chunk(2, dim=-1)[0]) * x.chunk(2, dim=-1)[1],
}


def make_norm(config: LMConfig) -> nn.Module:
    """Return LayerNorm or RMSNorm over d_model."""
    if config.norm == "rmsnorm":
        return nn.RMSNorm(config.d_model, config.norm_eps)
    return nn.LayerNorm(config.d_model, config.norm_eps, bias=config.bias)


class LMActivation(nn.Module):
    """An activation by name; SwiGLU halves the features."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.function = ACTIVATIONS[name]

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def make_layers(config: LMConfig, width: int, **then: nn.Module) -> nn.Module:
    """Return a linear layer to `width` features and an activation, and what follows."""
    up = nn.Linear(config.d_model, width * (1 + (config.activation == "swiglu")), bias=config.bias)
    return nn.Sequential(OrderedDict(up=up, activation=LMActivation(config.activation), **then))


class LMAttention(nn.Module):
    """Multi-head self-attention; heads may share keys and values (GQA)."""

    def __init__(self, config: LMConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.head_size, self.dropout = layer, config.d_head, config.attention_dropout
        self.projected = [heads * config.d_head for heads in (config.n_heads, config.n_kv_heads, config.n_kv_heads)]
        self.input = nn.Linear(config.d_model, sum(self.projected), bias=config.attention_bias != "none")
        self.output = nn.Linear(self.projected[0], config.d_model, bias=config.attention_bias == "all")
        self.query_norm = nn.RMSNorm(config.d_head, config.norm_eps) if config.qk_norm else None
        self.key_norm = nn.RMSNorm(config.d_head, config.norm_eps) if config.qk_norm else None
        self.value_scalars = nn.Parameter(torch.full((2,), 0.5)) if config.value_residual else None
        self.n_offset_heads = config.n_kv_heads // 2 if config.key_offset else 0

    def forward(self, x: Tensor, inputs: LMAttentionInputs) -> Tensor:
        """Map (batch, length, d_model) to the same shape."""
        parts = self.input(x).split(self.projected, dim=-1)
        query, key, value = (part.unflatten(-1, (-1, self.head_size)).transpose(1, 2) for part in parts)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if inputs.rotation is not None:
            query, key = rotate(query, inputs.rotation), rotate(key, inputs.rotation)
        if self.value_scalars is not None:
            value = inputs.mix(value, self.value_scalars)
        if inputs.cache is not None:
            key, value = inputs.cache.update(key, value, self.layer)
        if self.n_offset_heads:
            own, others = key.split((key.shape[1] - self.n_offset_heads, self.n_offset_heads), dim=1)
            key = torch.cat((own, inputs.offset(others)), dim=1)
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        attended = self.attend(query, key, value, inputs)
        return self.output(attended.transpose(1, 2).flatten(2))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, inputs: LMAttentionInputs) -> Tensor:
        """Return the attention output of (batch, heads, length, head) queries."""
        dropped = self.dropout if self.training else 0.0
        if inputs.tables is None or inputs.rows is None:
            return F.scaled_dot_product_attention(query, key, value, attn_mask=inputs.bias, dropout_p=dropped)
        heads = query.shape[1]
        keys, values = (table[self.layer].repeat_interleave(heads // table.shape[1], dim=0) for table in inputs.tables)
        query, rows = query * self.head_size**-0.5, inputs.rows.expand(len(query), heads, -1, -1)
        scores = query @ key.mT + (query @ keys.mT).gather(-1, rows) + inputs.bias
        weights = F.dropout(scores.softmax(-1), dropped)
        by_distance = weights.new_zeros(*weights.shape[:-1], values.shape[1]).scatter_add(-1, rows, weights)
        return weights @ value + by_distance @ values  # Shaw et al. 2018


class LMBlock(nn.Module):
    """Attention and feed-forward layer, pre- or post-norm, sequential or parallel."""

    def __init__(self, config: LMConfig, layer: int) -> None:
        super().__init__()
        self.norm_first, self.is_parallel = config.norm_position == "pre", config.parallel_residual
        self.attention_norm, self.attention = make_norm(config), LMAttention(config, layer)
        self.feed_forward_norm = make_norm(config)
        self.feed_forward = make_layers(config, config.d_ff, down=nn.Linear(config.d_ff, config.d_model, config.bias))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, inputs: LMAttentionInputs) -> Tensor:
        """Map (batch, length, d_model) to the same shape."""
        if not self.norm_first:
            x = self.attention_norm(x + self.dropout(self.attention(x, inputs)))
            return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))
        attended = x + self.dropout(self.attention(self.attention_norm(x), inputs))
        read = x if self.is_parallel else attended
        return attended + self.dropout(self.feed_forward(self.feed_forward_norm(read)))


class LMStack(nn.Module):
    """A stack of blocks."""

    def __init__(self, config: LMConfig) -> None:
        super().__init__()
        self.positions = LMRelativePositions(config)
        self.blocks = nn.ModuleList(LMBlock(config, layer) for layer in range(config.n_layers))
        self.final_norm = make_norm(config) if config.norm_position == "pre" else nn.Identity()

    def forward(self, x: Tensor, inputs: LMAttentionInputs) -> list[Tensor]:
        """Return the input of each block and the final states: n_layers + 1 of (batch, length, d_model)."""
        states = []
        for block in self.blocks:
            states.append(x)
            x = block(x, inputs)
        return [*states, self.final_norm(x)]


class LMEmbedding(nn.Module):
    """Token embeddings, plus position embeddings if absolute."""

    def __init__(self, config: LMConfig) -> None:
        super().__init__()
        self.config, learned = config, config.positions == "learned"
        self.tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.types = nn.Parameter(torch.zeros(config.token_types, config.d_model)) if config.token_types else None
        self.positions = nn.Embedding(config.context_length, config.d_model) if learned else None
        self.norm = make_norm(config) if config.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Map (batch, length) tokens at (batch or 1, length) positions to (batch, length, d_model)."""
        x = self.tokens(tokens)
        if self.config.scale_embeddings:
            x = x * math.sqrt(self.config.d_model)
        if self.types is not None:
            x = x + self.types[0]
        if self.positions is not None:
            x = x + self.positions(positions)
        if self.config.positions.startswith("sinusoidal"):
            x = x + sinusoidal_positions(self.config, positions).to(x.dtype)
        return self.dropout(self.norm(x))


class LMPreTrained(PreTrainedModel):
    """Embedding and stack, shared by all models."""

    config_class = LMConfig
    base_model_prefix = ""
    _no_split_modules: ClassVar = ["LMBlock"]
    _supports_sdpa = True

    def __init__(self, config: LMConfig) -> None:
        super().__init__(config)
        self.embedding, self.decoder = LMEmbedding(config), LMStack(config)

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding.tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.embedding.tokens = value

    def compute_logits(self, x: Tensor) -> Tensor:
        """Map final states (batch, length, d_model) to uncapped logits."""
        raise NotImplementedError

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int = 0,
        cache: Cache | None = None,
        **settings: Any,
    ) -> CausalLMOutputWithPast:
        """See LlamaForCausalLM of transformers, which has the same inputs and outputs.

        `past_key_values` is named `cache` since transformers 5.24; the order of outputs is the same.
        """
        cache = past_key_values if cache is None else cache
        if use_cache and cache is None:
            cache = DynamicCache()
        if position_ids is None:
            earlier = 0 if cache is None else cache.get_seq_length()
            position_ids = torch.arange(earlier, earlier + input_ids.shape[1], device=input_ids.device)[None]
        x = self.embedding(input_ids, position_ids)
        states = self.decoder(x, self.decoder.positions(x, position_ids, attention_mask, cache))
        logits, cap = self.compute_logits(states[-1][:, -logits_to_keep:]), self.config.softcap
        logits = (logits.float() / cap).tanh() * cap if cap else logits
        if labels is not None:
            settings |= {"labels": labels, "vocab_size": self.config.vocab_size, "config": self.config}
            loss = self.loss_function(logits=logits, pooled_logits=logits, **settings)
        hidden_states = tuple(states) if output_hidden_states else None
        return CausalLMOutputWithPast(None if labels is None else loss, logits, cache, hidden_states)


class LMWithTokens(LMPreTrained):
    """A model with an output layer over tokens, which may be tied to the embedding."""

    _tied_weights_keys: ClassVar = {"head.weight": "embedding.tokens.weight"}

    def __init__(self, config: LMConfig) -> None:
        super().__init__(config)
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.transform: nn.Module = nn.Identity()
        if config.output_transform:
            self.transform = make_layers(config, config.d_model, norm=make_norm(config))
        has_bias = config.output_transform or config.output_bias
        self.output_bias = nn.Parameter(torch.zeros(config.vocab_size)) if has_bias else None
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def set_output_embeddings(self, value: nn.Linear) -> None:
        self.head = value

    def compute_logits(self, x: Tensor) -> Tensor:
        return F.linear(self.transform(x), self.head.weight, self.output_bias)


class LMForCausalLM(LMWithTokens, GenerationMixin):
    """A causal language model."""


class LMForMaskedLM(LMWithTokens):
    """A masked language model."""


class LMForSequenceClassification(LMPreTrained):
    """A sequence classifier: a pooled first state and a linear layer (Devlin et al. 2019)."""

    def __init__(self, config: LMConfig) -> None:
        super().__init__(config)
        pooler, labels = nn.Linear(config.d_model, config.d_model), nn.Linear(config.d_model, config.num_labels)
        layers = OrderedDict(pooler=pooler, activation=nn.Tanh(), dropout=nn.Dropout(config.dropout), labels=labels)
        self.classifier = nn.Sequential(layers)
        self.post_init()

    def compute_logits(self, x: Tensor) -> Tensor:
        return self.classifier(x[:, 0])
