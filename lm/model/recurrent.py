"""Recurrent layers instead of transformer blocks: a bidirectional encoder, and a decoder with optional attention.

They replace `Stack` in the same models, so training, decoding and scoring are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lm.config.model import ModelConfig
from lm.errors import UsageError
from lm.model.attention import AttentionInputs, LayerKVCache
from lm.model.layers import Dropout, Linear


class RecurrentCache:
    """The states of a recurrent decoder after the last position.

    Attributes:
        length: positions decoded so far.
        states: of each layer, (1, rows, width) hidden states; of an LSTM (2, rows, width) with the cell states.
        cross_attention: keys and values of the encoder output, filled once.
    """

    def __init__(self) -> None:
        self.length = 0
        self.states: Sequence[Tensor] = ()
        self.cross_attention = [LayerKVCache()]

    @property
    def self_attention(self) -> Sequence[RecurrentCache]:
        """Itself, in place of the caches of self-attention."""
        return [self]

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes the former row `rows[i]`."""
        self.states = [state.index_select(1, rows) for state in self.states]
        for layer in self.cross_attention:
            layer.reorder(rows)


class RowRecurrentCache(RecurrentCache):
    """Recurrent states whose rows have different lengths."""

    def write_rows(self, rows: Tensor, read: RecurrentCache) -> None:
        """Set (rows,) rows to the states of another cache."""
        known = self.states[0].shape[1] if self.states else 0
        grown = [new.new_zeros(len(new), max(int(rows.max()) + 1, known), new.shape[2]) for new in read.states]
        for state, old in zip(grown, self.states, strict=bool(self.states)):
            state[:, :known] = old
        for state, new in zip(grown, read.states, strict=True):
            state[:, rows] = new
        self.states = grown
        self.length = max(self.length, read.length)

    def copy(self, rows: Tensor, others: Tensor) -> None:
        copied = RecurrentCache()
        copied.states, copied.length = self.states, self.length
        copied.reorder(others)
        self.write_rows(rows, copied)


class _RecurrentLayers(nn.Module):
    """Recurrent layers of d_model units in total over both directions, and perhaps attention to a source.

    The layers are separate modules, so that the dropout between them is that of the other models.
    """

    def __init__(self, config: ModelConfig, n_layers: int, *, bidirectional: bool = False) -> None:
        super().__init__()
        kind, width = nn.LSTM if config.architecture == "lstm" else nn.GRU, config.d_model // (1 + bidirectional)
        self.recurrent = nn.ModuleList(
            kind(config.d_model, width, batch_first=True, bidirectional=bidirectional) for _ in range(n_layers)
        )
        self.cross_attention: RecurrentAttention | None = None
        self.dropout, self.std = Dropout(config.dropout), config.init_std

    def initialise(self) -> None:
        """Draw matrices from a normal distribution; biases start at zero, those of an LSTM's forget gate at one.

        Source: Jozefowicz et al. 2015.
        """
        for layer in self.recurrent:
            for parameter in layer.parameters():
                if parameter.ndim == 1:
                    nn.init.zeros_(parameter)
                else:
                    nn.init.normal_(parameter, std=self.std)
            if isinstance(layer, nn.LSTM):
                for _, _, bias, _ in layer.all_weights:  # of each direction
                    nn.init.ones_(bias.detach()[layer.hidden_size : 2 * layer.hidden_size])

    def attention_layers(self, *, cross: bool = False) -> list[RecurrentAttention]:
        """Its attention to the source, if any; it has no self-attention."""
        return [self.cross_attention] if cross and self.cross_attention is not None else []


def _without_float16(x: Tensor) -> AbstractContextManager[object]:
    """Return a context in which a GPU computes the layers in the dtype of their weights.

    Autocast has float16 for cuDNN's recurrent layers, whatever its dtype, and its gradients would underflow.
    """
    return torch.autocast("cuda", enabled=False) if x.is_cuda else nullcontext()


class RecurrentEncoder(_RecurrentLayers):
    """Layers that read a source in both directions; a position has the states of both, half of d_model each.

    Source: Schuster and Paliwal 1997; for translation, Bahdanau et al. 2015, section 3.2.
    """

    def __init__(self, config: ModelConfig) -> None:
        if config.d_model % 2:
            raise UsageError(f"two directions of an encoder need an even d_model, not {config.d_model}")
        super().__init__(config, config.n_encoder_layers, bidirectional=True)

    def forward(self, x: Tensor, inputs: AttentionInputs) -> Tensor:
        """(batch, length, d_model) embeddings -> the same shape; padding is never read, and its states are zero."""
        batch, length, _ = x.shape
        lengths = inputs.mask.key_lengths
        lengths = torch.full((batch,), length) if lengths is None else lengths.clamp(min=1).cpu()
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        with _without_float16(x):
            for layer in self.recurrent:
                packed, _ = layer(packed)
                packed = packed._replace(data=self.dropout(packed.data))
        return pad_packed_sequence(packed, batch_first=True, total_length=length)[0]


class RecurrentDecoder(_RecurrentLayers):
    """Recurrent layers over a target, with optional attention to a source.

    Without a source the initial states are zero. With one they are computed from the last states of the encoder's two
    directions, all that a decoder without attention knows of it. Attention starts from the states of the last layer,
    and its results are not fed back into the layers, so one kernel call computes all positions.

    Source: Sutskever et al. 2014; initial states, Bahdanau et al. 2015, appendix A.2.2; attention, Luong et al. 2015,
    without input feeding.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, config.n_layers)
        self.recurrent_start = None
        if config.is_encoder_decoder:
            n_states = config.n_layers * (2 if config.architecture == "lstm" else 1)
            self.recurrent_start = Linear(config.d_model, n_states * config.d_model, std=config.init_std)
            if config.recurrent_attention != "none":
                self.cross_attention = RecurrentAttention(config)

    def forward(self, x: Tensor, inputs: AttentionInputs, cross_inputs: AttentionInputs | None = None) -> Tensor:
        """Transform the embeddings of a target.

        Args:
            x: (batch, length, d_model) embeddings, after those in the cache.
            inputs: with the cache, if there are earlier positions.
            cross_inputs: the encoder output, and its lengths.

        Returns:
            (batch, length, d_model).
        """
        cache = None if inputs.caches is None else inputs.caches[0]
        last: list[Tensor] = []
        with _without_float16(x):
            for layer, first in zip(self.recurrent, self._initial_states(cache, cross_inputs), strict=True):
                is_lstm = isinstance(layer, nn.LSTM)
                x, state = layer(x, first.split(1) if is_lstm and first is not None else first)
                x = self.dropout(x)
                last.append(torch.cat(state) if is_lstm and cache is not None else state)
        if cache is not None:
            cache.states, cache.length = last, cache.length + x.shape[1]
        return x if self.cross_attention is None or cross_inputs is None else self.cross_attention(x, cross_inputs)

    def _initial_states(
        self, cache: RecurrentCache | None, cross_inputs: AttentionInputs | None
    ) -> Sequence[Tensor | None]:
        if cache is not None and cache.length:
            return cache.states
        if self.recurrent_start is None or cross_inputs is None or cross_inputs.encoder_output is None:
            return [None] * len(self.recurrent)
        encoder_output, lengths = cross_inputs.encoder_output, cross_inputs.mask.key_lengths
        first = self.recurrent_start(_final_states(encoder_output, lengths)).tanh().to(encoder_output.dtype)
        by_layer = first.unflatten(1, (len(self.recurrent), -1, encoder_output.shape[-1]))
        return list(by_layer.permute(1, 2, 0, 3).contiguous())

    def new_cache(self) -> RecurrentCache:
        return RecurrentCache()


def _final_states(encoder_output: Tensor, lengths: Tensor | None) -> Tensor:
    """The last states of both directions: (batch, length, d_model) -> (batch, d_model)."""
    forward, backward = encoder_output.chunk(2, dim=-1)
    rows = torch.arange(len(forward), device=forward.device)
    last = forward[:, -1] if lengths is None else forward[rows, lengths.clamp(min=1) - 1]
    return torch.cat((last, backward[:, 0]), dim=-1)


class RecurrentAttention(nn.Module):
    """Attention of a decoder state h to source states m: tanh(W [Σ a m; h]), where a = softmax(score(h, m)).

    The score is h·m ("dot"), h·(W m) ("general") or v·tanh(W h + U m) ("additive"), with one head.

    Attributes:
        captured: see `capture_attention_weights`.

    Source: Luong et al. 2015, section 3.1; the additive score, Bahdanau et al. 2015, appendix A.1.2.
    """

    captured: list[Tensor] | None = None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, is_additive = config.d_model, config.recurrent_attention == "additive"
        self.heads, self.head_size = 1, width
        std = config.init_std
        self.key = None if config.recurrent_attention == "dot" else Linear(width, width, bias=False, std=std)
        self.query = Linear(width, width, std=std) if is_additive else None
        self.score = Linear(width, 1, bias=False, std=std) if is_additive else None
        self.combine = Linear(2 * width, width, std=std)

    def forward(self, x: Tensor, inputs: AttentionInputs) -> Tensor:
        """(batch, length, d_model) states, and the encoder output in `inputs` -> the same shape."""
        key, value = self._keys_and_values(inputs)
        if self.query is None or self.score is None:
            scores = (x.to(key.dtype) @ key.mT).float()
        else:
            scores = self.score((self.query(x)[:, :, None] + key[:, None]).tanh()).squeeze(-1).float()
        allowed = inputs.mask.build_tensor(scores.shape[1], scores.shape[2], scores.device)
        weights = (scores if allowed is None else scores.masked_fill(~allowed[:, 0], -torch.inf)).softmax(-1)
        if self.captured is not None:
            self.captured.append(weights.detach()[:, None])
        context = weights.to(value.dtype) @ value
        return self.combine(torch.cat((context, x.to(context.dtype)), dim=-1)).tanh()

    def _keys_and_values(self, inputs: AttentionInputs) -> tuple[Tensor, Tensor]:
        """(batch, source length, d_model) each; cached ones are reused."""
        assert inputs.encoder_output is not None
        cache = None if inputs.caches is None else inputs.caches[0]
        if cache is not None and cache.length:
            key, value = cache.keys_and_values()
        else:
            value = inputs.encoder_output[:, None]
            key = value if self.key is None else self.key(value)
            if cache is not None:
                key, value = cache.extend(key, value)
        return key[:, 0], value[:, 0]
