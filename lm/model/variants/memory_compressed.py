"""Memory-compressed attention: each key and value covers several positions."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from lm.config.model import ModelConfig
from lm.model.attention import MultiHeadAttention, attend
from lm.model.attention_inputs import AttentionInputs, RelativeEmbeddings
from lm.model.layers import Linear
from lm.model.mask import Mask
from lm.model.positions import Rotation
from lm.model.variants.block_sparse import compute_in_chunks, split_evenly

_MAX_SAVED_SCORES = 1 << 24
"""Scores saved for the backward pass; see `compute_in_chunks`."""


class MemoryCompressedAttention(MultiHeadAttention):
    """Self-attention to keys and values compressed by a strided convolution.

    Kernel and stride are equally wide, so the convolution is a matmul of concatenated neighbours. In a causal stack a
    query attends to keys that cover no later position, and the first queries to none. There a compressed key has the
    position of the last that it covers; in an encoder, where that may be padding, of the first. There is no KV cache: a
    sequence is recomputed for each token.

    Source: Liu et al. 2018, section 4.2.3 (memory-compressed attention).
    """

    def __init__(self, config: ModelConfig, *, layer: int = 0, is_causal: bool = True) -> None:
        super().__init__(config, layer=layer, value_residual=config.value_residual)
        self.stride, self.is_causal = config.attention_stride, is_causal
        kv_dim = self.kv_heads * self.head_size
        self.key_convolution, self.value_convolution = (
            Linear(self.stride * kv_dim, kv_dim, bias=config.attention_bias != "none", std=config.init_std)
            for _ in range(2)
        )
        self.key_convolution.uses = self.value_convolution.uses = 1 / self.stride

    def count_query_key_pairs(self, length: int, *, is_causal: bool) -> float:
        """Return the number of pairs of queries and compressed keys."""
        return length * (length / self.stride) / (2 if is_causal else 1)

    def project_qkv(self, x: Tensor, inputs: AttentionInputs) -> tuple[Tensor, Tensor, Tensor]:
        """Project to (batch, heads, length, head) queries, and to all compressed keys and values."""
        assert inputs.start == 0, "compressed attention has no cache"
        assert inputs.caches is None
        assert inputs.key_positions is None, "compressed keys need consecutive positions"
        query, key, value = self._split(self.input(x), (self.heads, self.kv_heads, self.kv_heads))
        query = self._normalise(self.query_norm, query)
        if inputs.rotation is not None:
            query = inputs.rotation(query)
        if inputs.first_layer_values is not None and self.value_scalars is not None:
            value = inputs.first_layer_values.mix(value, self.value_scalars)
        return query, *self._compress(key, value, inputs)

    def _compress(self, key: Tensor, value: Tensor, inputs: AttentionInputs) -> tuple[Tensor, Tensor]:
        key = self._normalise(self.key_norm, self._convolve(key, self.key_convolution, inputs))
        if inputs.rotation is not None:
            assert isinstance(inputs.rotation, Rotation)
            key = inputs.rotation.strided(self.stride, first=self.stride - 1 if self.is_causal else 0)(key)
        return key, self._convolve(value, self.value_convolution, inputs)

    def _convolve(self, x: Tensor, convolution: Linear, inputs: AttentionInputs) -> Tensor:
        """(batch, kv_heads, length, head) -> (batch, kv_heads, compressed, head); padding counts as zeros.

        An incomplete stride at the end is dropped if the mask is causal, else padded with zeros.
        """
        if self.is_causal:
            x = x[:, :, : x.shape[2] // self.stride * self.stride]
        else:
            if inputs.mask.key_lengths is not None:
                is_real = torch.arange(x.shape[2], device=x.device) < inputs.mask.key_lengths[:, None]
                x = x.masked_fill(~is_real[:, None, :, None], 0.0)
            x = F.pad(x, (0, 0, 0, -x.shape[2] % self.stride))
        concatenated = x.transpose(1, 2).flatten(2).unflatten(1, (-1, self.stride)).flatten(2)
        return convolution(concatenated).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)

    def attend_heads(self, query: Tensor, key: Tensor, value: Tensor, inputs: AttentionInputs) -> Tensor:
        if not key.shape[2]:
            return torch.zeros_like(query)
        length = query.shape[2]
        if self.is_causal and length > 1 and inputs.distance_bias is None and not self.active_dropout:
            return _interleaved_causal_attention(query, key, value, self.stride)
        if not self.is_causal and inputs.distance_bias is None and not self.active_dropout:
            return attend(query, key, value, mask=self.mask(query, inputs))
        scores_per_query = query.shape[0] * query.shape[1] * key.shape[2]
        compute = partial(self._attend_slice, query, key, value, inputs)
        return compute_in_chunks(
            compute,
            split_evenly(length, scores_per_query, max_cost=_MAX_SAVED_SCORES),
            is_random=self.active_dropout > 0,
        )

    def _attend_slice(  # noqa: PLR0917
        self, query: Tensor, key: Tensor, value: Tensor, inputs: AttentionInputs, first: int, end: int
    ) -> Tensor:
        query = query[:, :, first:end]
        n_keys = min(key.shape[2], end // self.stride) if self.is_causal else key.shape[2]
        if not n_keys:
            return torch.zeros_like(query)
        mask, relative = self._build_mask(query, n_keys, inputs, start=first)
        key, value = key[:, :, :n_keys], value[:, :, :n_keys]
        return attend(query, key, value, mask=mask, dropout=self.active_dropout, relative=relative)

    def mask(self, query: Tensor, inputs: AttentionInputs) -> Mask:
        """Return the mask over compressed keys with the bias of relative positions."""
        end = query.shape[2]
        return self._build_mask(query, end // self.stride if self.is_causal else -(-end // self.stride), inputs)[0]

    def _build_mask(
        self, query: Tensor, n_keys: int, inputs: AttentionInputs, *, start: int = 0
    ) -> tuple[Mask, RelativeEmbeddings | None]:
        """The mask of the first keys for queries from `start` on, and the relative embeddings of the values."""
        queries = torch.arange(start, start + query.shape[2], device=query.device)[:, None]
        keys = torch.arange(n_keys, device=query.device) * self.stride + (self.stride - 1 if self.is_causal else 0)
        visible = None
        if self.is_causal:
            visible = (keys <= queries)[None, None]
        elif inputs.mask.key_lengths is not None:
            visible = (keys < inputs.mask.key_lengths[:, None])[:, None, None]
        mask = Mask(visible=visible)
        if inputs.distance_bias is None:
            return mask, None
        bias, relative = inputs.distance_bias.compute_bias(query, (keys - queries)[None], layer=self.layer)
        return mask.with_bias(bias), relative

    def weights_by_position(self, weights: Tensor, length: int) -> Tensor:
        """Spread the weight of each compressed key evenly over the positions that it covers."""
        window_sizes = torch.full((weights.shape[-1],), self.stride, device=weights.device)
        if window_sizes.numel() * self.stride > length:
            window_sizes[-1] -= window_sizes.numel() * self.stride - length
        expanded = (weights / window_sizes).repeat_interleave(self.stride, dim=-1)[..., :length]
        return F.pad(expanded, (0, length - expanded.shape[-1]))


def _interleaved_causal_attention(query: Tensor, key: Tensor, value: Tensor, stride: int) -> Tensor:
    """Causal attention of a whole sequence to its compressed keys.

    Once the first key is complete, every stride-th query attends to one more key than the one before. So the queries
    are `stride` interleaved causal attentions, which a kernel computes as heads of one group.
    """
    batch, heads, length, head = query.shape
    first, n_keys = stride - 1, key.shape[2]
    queries = F.pad(query[:, :, first:], (0, 0, 0, n_keys * stride - (length - first)))
    interleaved = queries.unflatten(2, (n_keys, stride)).transpose(2, 3).reshape(batch, heads * stride, n_keys, head)
    output = attend(interleaved, key, value, mask=Mask.causal())
    sequential = output.view(batch, heads, stride, n_keys, head).transpose(2, 3).flatten(2, 3)
    return F.pad(sequential, (0, 0, first, 0))[:, :, :length]
