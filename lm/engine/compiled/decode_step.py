"""The compiled decode step: from tokens through all layers to logits, in one function."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import carray
from numpy.typing import NDArray

from lm.engine.compiled.cached_attention import attend
from lm.kernels.jit import njit
from lm.kernels.matmul import matmul, matmul_activation
from lm.kernels.scalar_math import as_pointer, as_variable
from lm.kernels.topk import top_k
from lm.kernels.vector_ops import SWIGLU, normalise, rotate

LAYER = (
    "attention_norm.weight", "attention_norm.bias", "attention.input.weight", "attention.input.scale",
    "attention.input.bias", "attention.output.weight", "attention.output.scale", "attention.output.bias",
    "attention.query_norm.weight", "attention.key_norm.weight", "attention.value_scalars",
    "cross_attention_norm.weight", "cross_attention_norm.bias", "cross_attention.input.weight",
    "cross_attention.input.scale",
    "cross_attention.input.bias", "cross_attention.output.weight", "cross_attention.output.scale",
    "cross_attention.output.bias", "cross_attention.query_norm.weight", "feed_forward_norm.weight",
    "feed_forward_norm.bias", "feed_forward.up.weight", "feed_forward.up.scale", "feed_forward.up.bias",
    "feed_forward.down.weight", "feed_forward.down.scale", "feed_forward.down.bias",
)  # fmt: skip
"""The tensors of a layer."""
MODEL = (
    "embedding.tokens.weight", "embedding.tokens.scale", "embedding.positions", "rotation", "biases",
    "decoder.final_norm.weight", "decoder.final_norm.bias", "head.weight", "head.scale", "output_bias",
)  # fmt: skip
"""The tensors of a model besides those of its layers."""


def address_dtype(names: tuple[str, ...]) -> np.dtype[np.void]:
    """The record dtype of tensor addresses, 0 for an absent one: a field for each name, `.` as `_`."""
    return np.dtype([(name.replace(".", "_"), np.int64) for name in names])


_ROWS_IN_CACHE = 96
"""Rows per chunk when only the top k are requested, so that the logits stay in the CPU cache."""


class ModelShape(NamedTuple):
    """The integer parameters of a model.

    Attributes:
        heads: query heads.
        kv_heads: key/value heads.
        head_size: width of a head.
        up_outputs: outputs of the first matmul of the feed-forward layer.
        vocab_size: rows of the output layer.
        activation: one of `lm.kernels.vector_ops.ACTIVATIONS`.
        rotary_dim: rotated features of a head.
        window: positions that attention sees; 0 for all.
        table_length: length of the tables by position or distance.
        is_layer_norm: 1 for LayerNorm, 0 for RMSNorm.
        norm_first: 1 for pre-norm, 0 for post-norm.
        is_parallel: 1 for parallel residuals.
    """

    d_model: int
    heads: int
    kv_heads: int
    head_size: int
    up_outputs: int
    vocab_size: int
    activation: int
    rotary_dim: int
    window: int
    table_length: int
    is_layer_norm: int
    norm_first: int
    is_parallel: int


class StepArrays(NamedTuple):
    """The tokens of a step, possibly several per row.

    Attributes:
        ids: (number,).
        rows: (number,) the cache row of each token.
        positions: (number,) in its row.
        slots: (number, positions) the slot of each position up to the token's own; (1, positions) if the same for all.
        lengths: (rows,) visible source positions; empty without a source.
    """

    ids: NDArray[np.int64]
    rows: NDArray[np.int64]
    positions: NDArray[np.int64]
    slots: NDArray[np.int64]
    lengths: NDArray[np.int64]


class TopKArrays(NamedTuple):
    """Output arrays of `lm.kernels.topk.top_k`."""

    values: NDArray[np.float32]
    places: NDArray[np.int64]
    logprobs: NDArray[np.float32]


class ModelScalars(NamedTuple):
    """The float parameters of a model: norm epsilon, embedding scale, and the soft cap of the logits, or 0."""

    epsilon: np.float32
    embedding: np.float32
    cap: np.float32


@njit
def _vector_at(address, length):
    """A float32 vector at an address; empty if the address is 0."""
    return carray(as_pointer(address), (length if address else 0,), np.float32)


class LinearArrays(NamedTuple):
    """A linear layer: (outputs, inputs) weights, and (outputs,) int8 scales and biases, which may be empty."""

    weights: NDArray[Any]
    scales: NDArray[np.float32]
    biases: NDArray[np.float32]


@njit
def _linear_at(weight, scale, bias, outputs, inputs, dtype_like):
    weights = carray(as_pointer(weight), (outputs, inputs), dtype_like.dtype)
    return LinearArrays(weights, _vector_at(scale, outputs), _vector_at(bias, outputs))


class AttentionArrays(NamedTuple):
    """The inputs of `lm.engine.compiled.cached_attention.attend` besides queries.

    Attributes:
        keys: (rows, kv_heads, capacity, head).
        values: like `keys`.
        rows: (number,) the row of each query.
        positions: (number,) the position of each query.
        slots: (number, longest) the slot of each position, or (1, longest) if the same for all queries.
        biases: (heads, distances) by distance, or empty.
        window: the number of visible positions, its own included; 0 for all.
    """

    keys: NDArray[np.float32]
    values: NDArray[np.float32]
    rows: NDArray[np.int64]
    positions: NDArray[np.int64]
    slots: NDArray[np.int64]
    biases: NDArray[np.float32]
    window: int


@njit
def _copy(x, out):
    """Copy a matrix, in a loop: numba takes seconds to compile an assignment of slices, with its error messages."""
    for row in range(len(out)):
        for i in range(out.shape[1]):
            out[row, i] = x[row, i]


@njit
def _normalise_rows(x, weight, bias, shape, scales, out):
    weights, biases = _vector_at(weight, shape.d_model), _vector_at(bias, shape.d_model)
    for row in range(len(x)):
        normalise(x[row], weights, biases, scales.epsilon, shape.is_layer_norm, out[row])


@njit
def _find_invalid_token(ids, vocabulary):
    """The index of the first ID outside the vocabulary; -1 if there is none."""
    for index in range(len(ids)):
        if ids[index] < 0 or ids[index] >= vocabulary:
            return index
    return -1


@njit
def _embed(batch, model, shape, scales, dtype_like, x):
    table = carray(as_pointer(model.embedding_tokens_weight), (shape.vocab_size, shape.d_model), dtype_like.dtype)
    row_scales = _vector_at(model.embedding_tokens_scale, shape.vocab_size)
    for row in range(len(x)):
        scale = scales.embedding * (row_scales[batch.ids[row]] if len(row_scales) else np.float32(1.0))
        for i in range(shape.d_model):
            x[row, i] = np.float32(table[batch.ids[row], i]) * scale
    if model.embedding_positions:
        vectors = carray(as_pointer(model.embedding_positions), (shape.table_length, shape.d_model), np.float32)
        for row in range(len(x)):
            for i in range(shape.d_model):
                x[row, i] += vectors[batch.positions[row], i]


@njit
def _prepare_heads(projected, layer, positions, model, shape, scales, first_layer_values, is_first):
    """Normalise and rotate the heads of queries and keys, and mix values, in place."""
    head, turning = shape.head_size, shape.heads + shape.kv_heads
    query_norm, key_norm = (
        _vector_at(layer.attention_query_norm_weight, head),
        _vector_at(layer.attention_key_norm_weight, head),
    )
    value_weights, empty = _vector_at(layer.attention_value_scalars, 2), _vector_at(0, 0)
    tables = carray(
        as_pointer(model.rotation), (shape.table_length if model.rotation else 0, 2, shape.rotary_dim), np.float32
    )
    for row in range(len(projected)):
        for index in range(turning):
            x = projected[row, index * head : (index + 1) * head]
            norm = query_norm if index < shape.heads else key_norm
            if len(norm):
                normalise(x, norm, empty, scales.epsilon, 0, x)
            if len(tables):
                rotate(x, tables[positions[row], 0], tables[positions[row], 1])
        if len(value_weights):
            values = projected[row, turning * head :]
            if is_first:
                for i in range(len(values)):
                    first_layer_values[row, i] = values[i]
            for i in range(len(values)):
                values[i] = value_weights[0] * first_layer_values[row, i] + value_weights[1] * values[i]


@njit
def _self_attention(
    x, layer, cache, batch, model, shape, scales, dtype_like, first_layer_values, is_first, out, threads
):
    """Add the self-attention of `x` to `out`; keys and values are written into the cache."""
    number, head, kv_heads = len(x), shape.head_size, shape.kv_heads
    n_projected, n_attended = (shape.heads + 2 * kv_heads) * head, shape.heads * head
    projected = np.empty((number, n_projected), np.float32)
    inputs = _linear_at(
        layer.attention_input_weight, layer.attention_input_scale, layer.attention_input_bias, n_projected,
        shape.d_model, dtype_like,
    )  # fmt: skip
    matmul(inputs.weights, inputs.scales, inputs.biases, x, projected, as_variable(False), threads)
    _prepare_heads(projected, layer, batch.positions, model, shape, scales, first_layer_values, is_first)
    keys, values = _cached_keys_and_values(cache, batch, shape)
    for token in range(number):
        row, slot = batch.rows[token], batch.slots[token if len(batch.slots) > 1 else 0, batch.positions[token]]
        for index in range(kv_heads):
            key, value = keys[row, index, slot], values[row, index, slot]
            projected_key = projected[token, (shape.heads + index) * head :]
            projected_value = projected[token, (shape.heads + kv_heads + index) * head :]
            for i in range(head):
                key[i] = projected_key[i]
            for i in range(head):
                value[i] = projected_value[i]
    biases = carray(as_pointer(model.biases), (shape.heads if model.biases else 0, shape.table_length), np.float32)
    queries = np.empty((number, n_attended), np.float32)
    _copy(projected[:, :n_attended], queries)
    attention_arrays = AttentionArrays(keys, values, batch.rows, batch.positions, batch.slots, biases, shape.window)
    outputs = _linear_at(
        layer.attention_output_weight, layer.attention_output_scale, layer.attention_output_bias, shape.d_model,
        n_attended, dtype_like,
    )  # fmt: skip
    _attend_and_project(queries, attention_arrays, outputs, shape, out, threads)


@njit
def _cross_attention(x, layer, cross_cache, batch, shape, scales, dtype_like, out, threads):
    """Add the cross-attention of `x` to `out`."""
    width, empty = shape.heads * shape.head_size, _vector_at(0, 0)
    queries = np.empty((len(x), width), np.float32)
    inputs = _linear_at(
        layer.cross_attention_input_weight, layer.cross_attention_input_scale, layer.cross_attention_input_bias, width,
        shape.d_model, dtype_like,
    )  # fmt: skip
    matmul(inputs.weights, inputs.scales, inputs.biases, x, queries, as_variable(False), threads)
    norm = _vector_at(layer.cross_attention_query_norm_weight, shape.head_size)
    for token in range(len(x) if len(norm) else 0):
        for first in range(0, width, shape.head_size):
            head = queries[token, first : first + shape.head_size]
            normalise(head, norm, empty, scales.epsilon, 0, head)
    keys, values = _cached_keys_and_values(cross_cache, batch, shape)
    slots, last = np.empty((1, cross_cache[2]), np.int64), np.empty(len(x), np.int64)
    for i in range(cross_cache[2]):
        slots[0, i] = i
    for token in range(len(x)):
        last[token] = batch.lengths[batch.rows[token]] - 1
    attention_arrays = AttentionArrays(keys, values, batch.rows, last, slots, empty.reshape(0, 0), as_variable(0))
    outputs = _linear_at(
        layer.cross_attention_output_weight, layer.cross_attention_output_scale, layer.cross_attention_output_bias,
        shape.d_model, width, dtype_like,
    )  # fmt: skip
    _attend_and_project(queries, attention_arrays, outputs, shape, out, threads)


@njit
def _cached_keys_and_values(cache, batch, shape):
    rows = 0
    for row in batch.rows:
        rows = max(rows, row + 1)
    size = (rows, shape.kv_heads, cache[2], shape.head_size)
    return carray(as_pointer(cache[0]), size, np.float32), carray(as_pointer(cache[1]), size, np.float32)


@njit
def _attend_and_project(queries, attention_arrays, outputs, shape, out, threads):
    """Attend, project, and add to `out`."""
    number = len(queries)
    scores, attended = np.empty((threads, attention_arrays.slots.shape[1]), np.float32), np.empty_like(queries)
    by_head = (number, shape.heads, shape.head_size)
    attend(queries.reshape(by_head), attention_arrays, scores, attended.reshape(by_head), threads)
    matmul(outputs.weights, outputs.scales, outputs.biases, attended, out, as_variable(True), threads)


@njit
def _feed_forward(x, layer, shape, dtype_like, out, threads):
    """Add the feed-forward layer of `x` to `out`."""
    width = shape.up_outputs // 2 if shape.activation == SWIGLU else shape.up_outputs
    inner = np.empty((len(x), shape.up_outputs), np.float32)
    up = _linear_at(
        layer.feed_forward_up_weight, layer.feed_forward_up_scale, layer.feed_forward_up_bias, shape.up_outputs,
        shape.d_model, dtype_like,
    )  # fmt: skip
    matmul_activation(up.weights, up.scales, up.biases, x, inner, shape.activation, threads)
    down = _linear_at(
        layer.feed_forward_down_weight, layer.feed_forward_down_scale, layer.feed_forward_down_bias, shape.d_model,
        width, dtype_like,
    )  # fmt: skip
    fed = np.empty((len(x), width), np.float32)
    _copy(inner[:, :width], fed)
    matmul(down.weights, down.scales, down.biases, fed, out, as_variable(True), threads)


@njit
def _compute_logits(x, model, shape, scales, dtype_like, logits, threads):
    head = _linear_at(
        model.head_weight, model.head_scale, model.output_bias, shape.vocab_size, shape.d_model, dtype_like
    )
    matmul(head.weights, head.scales, head.biases, x, logits, as_variable(False), threads)
    if scales.cap:
        for row in range(len(logits)):
            for i in range(shape.vocab_size):
                logits[row, i] = scales.cap * np.float32(np.tanh(logits[row, i] / scales.cap))


@njit
def _compute_top_k(x, model, shape, scales, dtype_like, top_k_arrays, threads):
    """Compute the top k next tokens of final states, in chunks of rows."""
    logits_buffer = np.empty((min(_ROWS_IN_CACHE, len(x)), shape.vocab_size), np.float32)
    for begin in range(0, len(x), _ROWS_IN_CACHE):
        end = min(begin + _ROWS_IN_CACHE, len(x))
        logits = logits_buffer[: end - begin]
        _compute_logits(x[begin:end], model, shape, scales, dtype_like, logits, threads)
        top_k(
            logits,
            logits,
            top_k_arrays.values[begin:end],
            top_k_arrays.places[begin:end],
            top_k_arrays.logprobs[begin:end],
        )


@njit(is_entry=True, nogil=True)
def decode_step(batch, layers, caches, cross_caches, model, shape, scales, dtype_like, logits, top_k_arrays, threads):
    """Compute a step: the next token of each row, or several of a row, causally masked.

    Args:
        layers: (layers,) records of the addresses of `LAYER`.
        caches: (layers, 3): addresses of keys and values, each (rows, kv_heads, capacity, head) float32; and the
            capacity.
        cross_caches: the same of cross-attention, whose capacity is the longest source; or (layers, 0).
        dtype_like: an empty array of the dtype of the matrices.
        logits: (number, vocabulary) float32, output; or (0, vocabulary), if only the top k are requested.
        top_k_arrays: output, see `lm.kernels.topk.top_k`.

    Returns:
        The index of the first token outside the vocabulary, in which case nothing was computed; else -1.
    """
    unknown = _find_invalid_token(batch.ids, shape.vocab_size)
    if unknown >= 0:
        return unknown
    x = np.empty((len(batch.ids), shape.d_model), np.float32)
    first_layer_values = np.empty((len(batch.ids), shape.kv_heads * shape.head_size), np.float32)
    _embed(batch, model, shape, scales, dtype_like, x)
    normed, feed_forward_input = np.empty_like(x), np.empty_like(x)
    for index in range(len(layers)):
        layer, cache, first = layers[index], caches[index], index == 0
        if shape.norm_first:
            _normalise_rows(x, layer.attention_norm_weight, layer.attention_norm_bias, shape, scales, normed)
            if shape.is_parallel:
                _normalise_rows(
                    x, layer.feed_forward_norm_weight, layer.feed_forward_norm_bias, shape, scales, feed_forward_input
                )
            _self_attention(
                normed, layer, cache, batch, model, shape, scales, dtype_like, first_layer_values, first, x, threads
            )
            if layer.cross_attention_input_weight:
                _normalise_rows(
                    x, layer.cross_attention_norm_weight, layer.cross_attention_norm_bias, shape, scales, normed
                )
                _cross_attention(normed, layer, cross_caches[index], batch, shape, scales, dtype_like, x, threads)
            if not shape.is_parallel:
                _normalise_rows(
                    x, layer.feed_forward_norm_weight, layer.feed_forward_norm_bias, shape, scales, feed_forward_input
                )
            _feed_forward(feed_forward_input, layer, shape, dtype_like, x, threads)
        else:
            _copy(x, normed)
            _self_attention(
                normed, layer, cache, batch, model, shape, scales, dtype_like, first_layer_values, first, x, threads
            )
            _normalise_rows(x, layer.attention_norm_weight, layer.attention_norm_bias, shape, scales, x)
            if layer.cross_attention_input_weight:
                _copy(x, normed)
                _cross_attention(normed, layer, cross_caches[index], batch, shape, scales, dtype_like, x, threads)
                _normalise_rows(x, layer.cross_attention_norm_weight, layer.cross_attention_norm_bias, shape, scales, x)
            _copy(x, normed)
            _feed_forward(normed, layer, shape, dtype_like, x, threads)
            _normalise_rows(x, layer.feed_forward_norm_weight, layer.feed_forward_norm_bias, shape, scales, x)
    if model.decoder_final_norm_weight:
        _normalise_rows(x, model.decoder_final_norm_weight, model.decoder_final_norm_bias, shape, scales, x)
    if len(logits):
        _compute_logits(x, model, shape, scales, dtype_like, logits, threads)
    else:
        _compute_top_k(x, model, shape, scales, dtype_like, top_k_arrays, threads)
    return -1
