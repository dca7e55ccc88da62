"""Linformer: self-attention to a fixed number of linear combinations of the positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lm.config.model import ModelConfig
from lm.errors import UsageError
from lm.model.attention import MultiHeadAttention, attend
from lm.model.attention_inputs import AttentionInputs
from lm.model.mask import Mask


class LinformerAttention(MultiHeadAttention):
    """Self-attention of an encoder whose keys and values are projected along the length to a low rank.

    The projections have a column per position of the context, shared by all heads; padding is excluded. They start so
    that sums over a whole context are as large as their summands.

    Source: Wang et al. 2020 (Linformer), section 4, shared headwise.
    """

    def __init__(self, config: ModelConfig, *, layer: int = 0) -> None:
        super().__init__(config, layer=layer, value_residual=config.value_residual)
        shape = (config.attention_rank, config.context_length)
        self.key_lengthwise, self.value_lengthwise = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape))

    def initialise(self) -> None:
        """Draw projections that preserve the scale over a whole context."""
        super().initialise()
        for projection in (self.key_lengthwise, self.value_lengthwise):
            nn.init.normal_(projection, std=projection.shape[1] ** -0.5)

    def own_macs(self) -> float:
        """See `Module`; each key and value takes part in `attention_rank` sums."""
        return super().own_macs() / self.key_lengthwise.shape[1] * self.kv_heads * self.head_size

    def count_query_key_pairs(self, length: int, *, is_causal: bool) -> float:  # noqa: ARG002 (it is never causal)
        """Return the number of pairs of queries and combinations."""
        return length * float(len(self.key_lengthwise))

    def project_qkv(self, x: Tensor, inputs: AttentionInputs) -> tuple[Tensor, Tensor, Tensor]:
        """Project to (batch, heads, length, head) queries, and (batch, kv_heads, rank, head) keys and values.

        Raises:
            UsageError: `x` is longer than the context.
        """
        query, key, value = super().project_qkv(x, inputs)
        length, end = x.shape[1], self.key_lengthwise.shape[1]
        if length > end:
            raise UsageError(
                f"linformer's projections end at {end}, but the sequence has {length} tokens",
            )
        if inputs.mask.key_lengths is not None:
            is_real = torch.arange(length, device=x.device) < inputs.mask.key_lengths[:, None]
            key, value = (tensor.masked_fill(~is_real[:, None, :, None], 0.0) for tensor in (key, value))
        key = self.key_lengthwise[:, :length].to(key.dtype) @ key
        return query, key, self.value_lengthwise[:, :length].to(value.dtype) @ value

    def attend_heads(self, query: Tensor, key: Tensor, value: Tensor, inputs: AttentionInputs) -> Tensor:  # noqa: ARG002
        return attend(query, key, value, mask=Mask(), dropout=self.active_dropout)

    def mask(self, query: Tensor, inputs: AttentionInputs) -> Mask:  # noqa: ARG002
        return Mask()

    def weights_by_position(self, weights: Tensor, length: int) -> Tensor:  # noqa: ARG002
        """UsageError: the weights are not of positions."""
        raise UsageError("linformer attends to combinations of all positions: there is no attention map")
