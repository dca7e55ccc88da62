"""Self-attention to fewer keys and values than there are positions: memory-compressed attention, and Linformer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lm.config.model import ModelConfig
from lm.errors import UsageError
from lm.model.attention import AttentionInputs, Mask, MultiHeadAttention, attend, normalise
from lm.model.layers import Linear
from lm.model.positions import Rotation


class MemoryCompressedAttention(MultiHeadAttention):
    """Self-attention to keys and values compressed by a strided convolution.

    Kernel and stride are equally wide, so the convolution is a matmul of concatenated neighbours. In a causal stack a
    query attends to keys that cover no later position, and the first queries to none. There a compressed key has the
    position of the last that it covers; in an encoder, where that may be padding, of the first. There is no KV cache: a
    sequence is recomputed for each token.

    Source: Liu et al. 2018, section 4.2.3 (memory-compressed attention).
    """

    def __init__(self, config: ModelConfig, *, layer: int = 0, is_causal: bool = True) -> None:
        super().__init__(config, layer=layer)
        self.stride, self.is_causal = config.attention_stride, is_causal
        self.first = self.stride - 1 if is_causal else 0  # the position of the first compressed key
        kv_dim = self.kv_heads * self.head_size
        self.key_convolution, self.value_convolution = (
            Linear(self.stride * kv_dim, kv_dim, bias=config.attention_bias != "none", std=config.init_std)
            for _ in range(2)
        )

    def count_query_key_pairs(self, length: int, *, is_causal: bool) -> float:
        """Return the number of pairs of queries and compressed keys."""
        return length * (length / self.stride) / (2 if is_causal else 1)

    def project_qkv(self, x: Tensor, inputs: AttentionInputs) -> tuple[Tensor, Tensor, Tensor]:
        """Project to (batch, heads, length, head) queries, and to all compressed keys and values."""
        assert inputs.caches is None, "compressed attention has no cache"
        query, key, value = self.project_self(x, inputs)
        key = normalise(self.key_norm, self._convolve(key, self.key_convolution, inputs))
        if inputs.rotation is not None:
            cos, sin = (table[self.first :: self.stride] for table in (inputs.rotation.cos, inputs.rotation.sin))
            key = Rotation(cos, sin)(key)
        return query, key, self._convolve(value, self.value_convolution, inputs)

    def _convolve(self, x: Tensor, convolution: Linear, inputs: AttentionInputs) -> Tensor:
        """(batch, kv_heads, length, head) -> (batch, kv_heads, compressed, head); padding counts as zeros.

        An incomplete stride at the end is dropped if the mask is causal, else padded with zeros.
        """
        if self.is_causal:
            x = x[:, :, : x.shape[2] // self.stride * self.stride]
        else:
            x = F.pad(_zero_padding(x, inputs.mask), (0, 0, 0, -x.shape[2] % self.stride))
        concatenated = x.transpose(1, 2).flatten(2).unflatten(1, (-1, self.stride)).flatten(2)
        return convolution(concatenated).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)

    def attend_heads(self, query: Tensor, key: Tensor, value: Tensor, inputs: AttentionInputs) -> Tensor:
        if not key.shape[2]:
            return torch.zeros_like(query)
        if self.is_causal and query.shape[2] > 1 and not self.active_dropout:
            return _interleaved_causal_attention(query, key, value, self.stride)
        return super().attend_heads(query, key, value, inputs)

    def mask(self, query: Tensor, inputs: AttentionInputs) -> Mask:
        """Return the mask over compressed keys."""
        length = query.shape[2]
        keys = torch.arange(self.first, length, self.stride, device=query.device)
        if self.is_causal:
            return Mask(visible=(keys <= torch.arange(length, device=query.device)[:, None])[None, None])
        if inputs.mask.key_lengths is None:
            return Mask()
        return Mask(visible=(keys < inputs.mask.key_lengths[:, None])[:, None, None])

    def weights(self, query: Tensor, key: Tensor, inputs: AttentionInputs) -> Tensor:
        """Spread the weight of each compressed key evenly over the positions that it covers."""
        length, starts = query.shape[2], self.stride * torch.arange(key.shape[2], device=key.device)
        weights = super().weights(query, key, inputs) / (length - starts).clamp(max=self.stride)
        spread = weights.repeat_interleave(self.stride, dim=-1)[..., :length]
        return F.pad(spread, (0, length - spread.shape[-1]))


def _zero_padding(x: Tensor, mask: Mask) -> Tensor:
    """Zero the padding of (batch, heads, length, head)."""
    if mask.key_lengths is None:
        return x
    is_real = torch.arange(x.shape[2], device=x.device) < mask.key_lengths[:, None]
    return x.masked_fill(~is_real[:, None, :, None], 0.0)


def _interleaved_causal_attention(query: Tensor, key: Tensor, value: Tensor, stride: int) -> Tensor:
    """Causal attention of a whole sequence to its compressed keys.

    Once the first key is complete, every stride-th query attends to one more key than the one before. So the queries
    are `stride` interleaved causal attentions, which a kernel computes as heads of one group.
    """
    batch, heads, length, head = query.shape
    first, n_keys = stride - 1, key.shape[2]
    queries = F.pad(query[:, :, first:], (0, 0, 0, n_keys * stride - (length - first)))
    interleaved = queries.unflatten(2, (n_keys, stride)).transpose(2, 3).reshape(batch, heads * stride, n_keys, head)
    output = attend(interleaved, key, value, mask=Mask(is_causal=True))
    sequential = output.view(batch, heads, stride, n_keys, head).transpose(2, 3).flatten(2, 3)
    return F.pad(sequential, (0, 0, first, 0))[:, :, :length]


class LinformerAttention(MultiHeadAttention):
    """Self-attention of an encoder whose keys and values are projected along the length to a low rank.

    The projections have a column per position of the context, shared by all heads; padding is excluded. They start so
    that sums over a whole context are as large as their summands.

    Source: Wang et al. 2020 (Linformer), section 4, shared headwise.
    """

    def __init__(self, config: ModelConfig, *, layer: int = 0) -> None:
        super().__init__(config, layer=layer)
        shape = (config.attention_rank, config.context_length)
        self.key_lengthwise, self.value_lengthwise = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape))

    def initialise(self) -> None:
        """Draw projections that preserve the scale over a whole context."""
        super().initialise()
        for projection in (self.key_lengthwise, self.value_lengthwise):
            nn.init.normal_(projection, std=projection.shape[1] ** -0.5)

    def count_query_key_pairs(self, length: int, *, is_causal: bool) -> float:  # noqa: ARG002 (it is never causal)
        """Return the number of pairs of queries and combinations."""
        return length * float(len(self.key_lengthwise))

    def project_qkv(self, x: Tensor, inputs: AttentionInputs) -> tuple[Tensor, Tensor, Tensor]:
        """Project to (batch, heads, length, head) queries, and (batch, kv_heads, rank, head) keys and values."""
        query, key, value = super().project_qkv(x, inputs)
        length = x.shape[1]
        key = self.key_lengthwise[:, :length].to(key.dtype) @ _zero_padding(key, inputs.mask)
        return query, key, self.value_lengthwise[:, :length].to(value.dtype) @ _zero_padding(value, inputs.mask)

    def mask(self, query: Tensor, inputs: AttentionInputs) -> Mask:  # noqa: ARG002
        return Mask()

    def weights(self, query: Tensor, key: Tensor, inputs: AttentionInputs) -> Tensor:  # noqa: ARG002
        """UsageError: the weights are not of positions."""
        raise UsageError("linformer attends to combinations of all positions: there is no attention map")
