"""The compiled decode step: from tokens through all layers to logits, in one function."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import carray, prange
from numpy.typing import NDArray

from lm.kernels.jit import njit
from lm.kernels.matmul import matmul
from lm.kernels.vector_ops import (
    SWIGLU,
    activate,
    as_pointer,
    as_variable,
    exp_and_sum,
    gather_dot_products,
    gather_weighted_sum,
    maximum,
    normalise,
    rotate,
    top_k,
)

TENSOR_KINDS = ("weight", "scale", "bias")
_MODULE = np.dtype([(kind, np.int64) for kind in TENSOR_KINDS])
"""The addresses of a module's tensors, 0 for an absent one; of what is no module, `weight` is the tensor."""
LAYER = (
    "attention_norm", "attention.input", "attention.output", "attention.query_norm", "attention.key_norm",
    "attention.value_scalars", "cross_attention_norm", "cross_attention.input", "cross_attention.output",
    "cross_attention.query_norm", "feed_forward_norm", "feed_forward.up", "feed_forward.down",
)  # fmt: skip
"""The modules of a layer."""
MODEL = (
    "embedding.tokens", "embedding.positions", "rotation", "biases", "decoder.final_norm", "head",
)  # fmt: skip
"""The modules of a model besides those of its layers."""


def address_dtype(names: tuple[str, ...]) -> np.dtype[np.void]:
    """The record dtype of modules: a field for each name, `.` as `_`."""
    return np.dtype([(name.replace(".", "_"), _MODULE) for name in names])


_ROWS_IN_CACHE = 96
"""Rows per chunk when only the top k are requested, so that the logits stay in the CPU cache."""
_BYTES = 4
_BYTES_OF_PLACES = 8


class ModelArrays(NamedTuple):
    """The addresses and parameters of a model.

    Attributes:
        layers: (layers,) records of the addresses of `LAYER`.
        modules: (1,) record of the addresses of `MODEL`.
        dtype_like: an empty array of the dtype of the matrices.
        heads: query heads.
        kv_heads: key/value heads.
        n_offset_heads: how many of them, the last ones, read the key of the position before.
        head_size: width of a head.
        up_outputs: outputs of the first matmul of the feed-forward layer.
        vocab_size: rows of the output layer.
        activation: one of `lm.kernels.vector_ops.ACTIVATIONS`.
        rotary_dim: rotated features of a head.
        window: positions that attention sees; 0 for all.
        table_length: length of the tables by position or distance.
        embedding_scale: of the token embeddings.
        cap: the soft cap of the logits, or 0.
    """

    layers: NDArray[np.void]
    modules: NDArray[np.void]
    dtype_like: NDArray[Any]
    d_model: int
    heads: int
    kv_heads: int
    n_offset_heads: int
    head_size: int
    up_outputs: int
    vocab_size: int
    activation: int
    rotary_dim: int
    window: int
    table_length: int
    is_layer_norm: bool
    norm_first: bool
    is_parallel: bool
    epsilon: np.float32
    embedding_scale: np.float32
    cap: np.float32


@njit
def _vector_at(address, length):
    """A float32 vector at an address; empty if the address is 0."""
    return carray(as_pointer(address), (length if address else 0,), np.float32)


@njit
def _table_at(address, rows, columns):
    """A float32 matrix at an address; empty if the address is 0."""
    return carray(as_pointer(address), (rows if address else 0, columns), np.float32)


@njit
def _copy(x, out):
    """Copy a matrix, in a loop: numba takes seconds to compile an assignment of slices, with its error messages."""
    for row in range(len(out)):
        for i in range(out.shape[1]):
            out[row, i] = x[row, i]


@njit
def _linear(x, module, model, out, is_added, threads):
    """Write the outputs of a linear layer to `out`, or add them."""
    outputs = out.shape[1]
    weights = carray(as_pointer(module.weight), (outputs, x.shape[1]), model.dtype_like.dtype)
    scales, biases = _vector_at(module.scale, outputs), _vector_at(module.bias, outputs)
    matmul(weights, scales, biases, x, out, as_variable(is_added), threads)


@njit
def _normalise_rows(x, module, model, out):
    weights, biases = _vector_at(module.weight, model.d_model), _vector_at(module.bias, model.d_model)
    for row in range(len(x)):
        normalise(x[row], weights, biases, model.epsilon, model.is_layer_norm, out[row])


@njit
def _before(x, norm, model, out):
    """Write the input of a sublayer to `out`."""
    if model.norm_first:
        _normalise_rows(x, norm, model, out)
    else:
        _copy(x, out)


@njit
def _after(x, norm, model):
    """Normalise the output of a sublayer, in place, if norms come after."""
    if not model.norm_first:
        _normalise_rows(x, norm, model, x)


@njit
def _embed(batch, modules, model, x):
    tokens = modules.embedding_tokens
    table = carray(as_pointer(tokens.weight), (model.vocab_size, model.d_model), model.dtype_like.dtype)
    row_scales = _vector_at(tokens.scale, model.vocab_size)
    for row in range(len(x)):
        scale = model.embedding_scale * (row_scales[batch.ids[row]] if len(row_scales) else np.float32(1.0))
        for i in range(model.d_model):
            x[row, i] = np.float32(table[batch.ids[row], i]) * scale
    vectors = _table_at(modules.embedding_positions.weight, model.table_length, model.d_model)
    for row in range(len(x) if len(vectors) else 0):
        for i in range(model.d_model):
            x[row, i] += vectors[batch.positions[row], i]


@njit
def _find_places(rows, ends, shared, kv_heads, capacity):
    """(number, longest): where the first head of the key and value of each position of each token's row is.

    Places are counted in heads from the start of a cache.
    """
    longest = 0
    for end in ends:
        longest = max(longest, end)
    places = np.empty((len(rows), longest), np.int64)
    for token in range(len(rows)):
        for position in range(ends[token]):
            row = shared[rows[token], position] if position < shared.shape[1] else rows[token]
            places[token, position] = row * kv_heads * capacity + position
    return places


@njit
def _prepare_heads(projected, layer, positions, modules, model, first_layer_values, is_first):
    """Normalise and rotate the heads of queries and keys, and mix values, in place."""
    head, turning = model.head_size, model.heads + model.kv_heads
    query_norm = _vector_at(layer.attention_query_norm.weight, head)
    key_norm = _vector_at(layer.attention_key_norm.weight, head)
    value_weights, empty = _vector_at(layer.attention_value_scalars.weight, 2), _vector_at(0, 0)
    rotation = modules.rotation.weight
    tables = carray(as_pointer(rotation), (model.table_length if rotation else 0, 2, model.rotary_dim), np.float32)
    for row in range(len(projected)):
        for index in range(turning):
            x = projected[row, index * head : (index + 1) * head]
            norm = query_norm if index < model.heads else key_norm
            if len(norm):
                normalise(x, norm, empty, model.epsilon, False, x)
            if len(tables):
                rotate(x, tables[positions[row], 0], tables[positions[row], 1])
        if len(value_weights):
            values = projected[row, turning * head :]
            if is_first:
                for i in range(len(values)):
                    first_layer_values[row, i] = values[i]
            for i in range(len(values)):
                values[i] = value_weights[0] * first_layer_values[row, i] + value_weights[1] * values[i]


@njit(error_model="numpy")
def _attend_heads(queries, sizes, cache, places, ends, biases, scores, out, begin, end):
    """Compute heads `begin` to `end` of all queries; vectors are addresses, as array views are reference-counted."""
    heads, width, group, stride, window, first_offset_head = sizes
    scale = np.float32(1.0) / np.sqrt(np.float32(width))
    for index in range(begin, end):
        query, head = index // heads, index % heads
        of_query = queries.ctypes.data + _BYTES * (query * queries.shape[1] + head * width)
        first = max(0, ends[query] - window) if window else 0
        length = ends[query] - first
        of_head = _BYTES * (head // group) * stride * width
        of_scores = scores.ctypes.data
        offset = 1 if head // group >= first_offset_head else 0
        without_key = max(0, offset - first)
        scores[0] = np.float32(0.0)
        of_places = places.ctypes.data + _BYTES_OF_PLACES * (query * places.shape[1] + first)
        of_keys = of_places + _BYTES_OF_PLACES * (without_key - offset)
        of_first = of_scores + _BYTES * without_key
        gather_dot_products(of_query, cache[0] + of_head, of_keys, length - without_key, width, of_first)
        for t in range(length):
            scores[t] *= scale
        if len(biases):
            for t in range(length):
                scores[t] += biases[head, length - 1 - t]
        scale_of_weights = np.float32(1.0) / exp_and_sum(of_scores, length, maximum(of_scores, length), of_scores)
        to = out.ctypes.data + _BYTES * index * width
        gather_weighted_sum(of_scores, scale_of_weights, of_places, length, cache[1] + of_head, width, to)


@njit(parallel=True)
def _attend(queries, sizes, cache, places, ends, biases, out, threads):
    """Compute all heads of all queries.

    Args:
        queries: (number, heads · width or more).
        sizes: the number of heads and their width; query heads per key/value head; heads of the cache from one
            key/value head to the next; the number of visible positions, the last included, or 0 for all; and the first
            key/value head that reads the key of the position before.
        cache: (2,) addresses of keys and values.
        places: (number, longest), see `_find_places`.
        ends: (number,) the position after the last that a query attends to.
        biases: (heads, distances) by distance, or empty.
        out: (number, heads · width).
    """
    number = len(queries) * sizes[0]
    scores = np.empty((threads, places.shape[1]), np.float32)
    if threads == 1:
        _attend_heads(queries, sizes, cache, places, ends, biases, scores[0], out, as_variable(0), number)
    else:
        for part in prange(threads):
            begin, end = number * part // threads, number * (part + 1) // threads
            _attend_heads(queries, sizes, cache, places, ends, biases, scores[part], out, begin, end)


@njit
def _self_attention(x, layer, cache, places, ends, batch, modules, model, first_layer_values, is_first, out, threads):
    """Add the self-attention of `x` to `out`; keys and values are written into the cache."""
    number, head, kv_heads = len(x), model.head_size, model.kv_heads
    width = model.heads * head
    projected = np.empty((number, width + 2 * kv_heads * head), np.float32)
    _linear(x, layer.attention_input, model, projected, False, threads)
    _prepare_heads(projected, layer, batch.positions, modules, model, first_layer_values, is_first)
    for token in range(number):
        for part in range(2):
            for index in range(kv_heads):
                place = places[token, batch.positions[token]] + index * batch.capacity
                stored = carray(as_pointer(cache[part] + _BYTES * place * head), (head,), np.float32)
                new = projected[token, width + (part * kv_heads + index) * head :]
                for i in range(head):
                    stored[i] = new[i]
    biases = _table_at(modules.biases.weight, model.heads, model.table_length)
    attended = np.empty((number, width), np.float32)
    first_offset_head = kv_heads - model.n_offset_heads
    sizes = (model.heads, head, model.heads // kv_heads, batch.capacity, model.window, first_offset_head)
    _attend(projected, sizes, cache, places, ends, biases, attended, threads)
    _linear(attended, layer.attention_output, model, out, True, threads)


@njit
def _cross_attention(x, layer, cache, capacity, places, ends, model, out, threads):
    """Add the cross-attention of `x` to `out`."""
    number, head, width = len(x), model.head_size, model.heads * model.head_size
    queries, attended = np.empty((number, width), np.float32), np.empty((number, width), np.float32)
    _linear(x, layer.cross_attention_input, model, queries, False, threads)
    norm, empty = _vector_at(layer.cross_attention_query_norm.weight, head), _vector_at(0, 0)
    for token in range(number if len(norm) else 0):
        for first in range(0, width, head):
            query = queries[token, first : first + head]
            normalise(query, norm, empty, model.epsilon, False, query)
    sizes = (model.heads, head, model.heads // model.kv_heads, capacity, as_variable(0), model.kv_heads)
    _attend(queries, sizes, cache, places, ends, _table_at(0, 0, 0), attended, threads)
    _linear(attended, layer.cross_attention_output, model, out, True, threads)


@njit
def _feed_forward(x, layer, model, out, threads):
    """Add the feed-forward layer of `x` to `out`."""
    width = model.up_outputs // 2 if model.activation == SWIGLU else model.up_outputs
    inner, fed = np.empty((len(x), model.up_outputs), np.float32), np.empty((len(x), width), np.float32)
    _linear(x, layer.feed_forward_up, model, inner, False, threads)
    _copy(inner, fed)
    for row in range(len(fed)):
        activate(fed[row], model.activation)
        if model.activation == SWIGLU:
            for i in range(width):
                fed[row, i] *= inner[row, width + i]
    _linear(fed, layer.feed_forward_down, model, out, True, threads)


@njit
def _compute_logits(x, modules, model, logits, threads):
    _linear(x, modules.head, model, logits, False, threads)
    if model.cap:
        for row in range(len(logits)):
            for i in range(model.vocab_size):
                logits[row, i] = model.cap * np.float32(np.tanh(logits[row, i] / model.cap))


@njit(is_entry=True, nogil=True)
def decode_step(batch, model, logits, top_k_arrays, threads):
    """Compute a step: the next token of each row, or several of a row, causally masked.

    Args:
        batch: see `lm.engine.kv_cache.StepArrays`.
        model: see `ModelArrays`.
        logits: (number, vocabulary) float32, output; or (0, vocabulary), if only the top k are requested.
        top_k_arrays: values, indices and log-probabilities, output; see `lm.kernels.vector_ops.top_k`.

    Raises:
        IndexError: a token ID is outside the vocabulary, as PyTorch's embedding raises.
    """
    for token in batch.ids:
        if token < 0 or token >= model.vocab_size:
            raise IndexError("a token ID is outside the vocabulary")
    modules, number = model.modules[0], len(batch.ids)
    x = np.empty((number, model.d_model), np.float32)
    inputs, feed_forward_inputs = np.empty_like(x), np.empty_like(x)
    first_layer_values = np.empty((number, model.kv_heads * model.head_size), np.float32)
    _embed(batch, modules, model, x)
    ends, source_ends = batch.positions + 1, batch.source_lengths[batch.sources]
    places = _find_places(batch.rows, ends, batch.shared, model.kv_heads, batch.capacity)
    source_places = _find_places(
        batch.sources, source_ends, batch.shared[:0, :0], model.kv_heads, batch.source_capacity
    )
    for index in range(len(model.layers)):
        layer = model.layers[index]
        _before(x, layer.attention_norm, model, inputs)
        if model.is_parallel:
            _before(x, layer.feed_forward_norm, model, feed_forward_inputs)
        _self_attention(
            inputs, layer, batch.caches[index], places, ends, batch, modules, model, first_layer_values, index == 0, x,
            threads,
        )  # fmt: skip
        _after(x, layer.attention_norm, model)
        if layer.cross_attention_input.weight:
            _before(x, layer.cross_attention_norm, model, inputs)
            cache, capacity = batch.cross_caches[index], batch.source_capacity
            _cross_attention(inputs, layer, cache, capacity, source_places, source_ends, model, x, threads)
            _after(x, layer.cross_attention_norm, model)
        if not model.is_parallel:
            _before(x, layer.feed_forward_norm, model, feed_forward_inputs)
        _feed_forward(feed_forward_inputs, layer, model, x, threads)
        _after(x, layer.feed_forward_norm, model)
    if modules.decoder_final_norm.weight:
        _normalise_rows(x, modules.decoder_final_norm, model, x)
    if len(logits):
        _compute_logits(x, modules, model, logits, threads)
        return
    values, indices, logprobs = top_k_arrays
    logits_buffer = np.empty((min(_ROWS_IN_CACHE, number), model.vocab_size), np.float32)
    for begin in range(0, number, _ROWS_IN_CACHE):
        end = min(begin + _ROWS_IN_CACHE, number)
        chunk = logits_buffer[: end - begin]
        _compute_logits(x[begin:end], modules, model, chunk, threads)
        top_k(chunk, chunk, values[begin:end], indices[begin:end], logprobs[begin:end])
