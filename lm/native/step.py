"""A few positions more: from tokens through all layers to logits, in one compiled function."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import carray
from numpy.typing import NDArray

from lm.kernels.best import best
from lm.kernels.caching import njit
from lm.kernels.products import activated, product
from lm.kernels.scalars import plain, pointer
from lm.kernels.vectors import SWIGLU, normalise, turn
from lm.native.attention import attend

LAYER = (
    "attention_norm.weight", "attention_norm.bias", "attention.input.weight", "attention.input.scale",
    "attention.input.bias", "attention.output.weight", "attention.output.scale", "attention.output.bias",
    "attention.query_norm.weight", "attention.key_norm.weight", "attention.value_shares", "cross_attention_norm.weight",
    "cross_attention_norm.bias", "cross_attention.input.weight", "cross_attention.input.scale",
    "cross_attention.input.bias", "cross_attention.output.weight", "cross_attention.output.scale",
    "cross_attention.output.bias", "cross_attention.query_norm.weight", "feed_forward_norm.weight",
    "feed_forward_norm.bias", "feed_forward.up.weight", "feed_forward.up.scale", "feed_forward.up.bias",
    "feed_forward.down.weight", "feed_forward.down.scale", "feed_forward.down.bias",
)  # fmt: skip
"""The tensors of a layer, in the order of their addresses; one that it hasn't got is at 0."""
(
    A_NORM, A_NORM_BIAS, INPUT, INPUT_SCALE, INPUT_BIAS, OUTPUT, OUTPUT_SCALE, OUTPUT_BIAS, QUERY_NORM, KEY_NORM,
    SHARES, C_NORM, C_NORM_BIAS, C_INPUT, C_INPUT_SCALE, C_INPUT_BIAS, C_OUTPUT, C_OUTPUT_SCALE, C_OUTPUT_BIAS,
    C_QUERY_NORM, F_NORM, F_NORM_BIAS, UP, UP_SCALE, UP_BIAS, DOWN, DOWN_SCALE, DOWN_BIAS,
) = range(len(LAYER))  # fmt: skip
MODEL = (
    "embedding.tokens.weight", "embedding.tokens.scale", "embedding.positions", "rotation", "biases",
    "decoder.stream_shares", "decoder.embedding_shares", "decoder.final_norm.weight", "decoder.final_norm.bias",
    "head.weight", "head.scale", "output_bias",
)  # fmt: skip
"""What there is once."""
(
    TOKENS, TOKENS_SCALE, POSITIONS, ROTATION, BIASES, STREAM_SHARES, EMBEDDING_SHARES, FINAL_NORM, FINAL_NORM_BIAS,
    HEAD, HEAD_SCALE, HEAD_BIAS,
) = range(len(MODEL))  # fmt: skip

_ROWS_IN_CACHE = 96
"""Rows whose logits are made at a time, where the best ones are wanted alone: they stay near."""


class Shape(NamedTuple):
    """The numbers of a model, all whole.

    Attributes:
        width: d_model.
        heads: of queries.
        kv_heads: of keys and values.
        head: width of each.
        inner: outputs of the first product of the feed-forward layer.
        vocabulary: of the output layer.
        activation: one of `lm.kernels.vectors.ACTIVATIONS`.
        turned: features of a head that rotary positions turn.
        window: positions that attention sees; 0 for all.
        table: positions that the tables by position or distance have.
        centred: 1 for LayerNorm, 0 for RMSNorm.
        norm_first: 1 where a sublayer's input is normalised, 0 where the sum is.
        is_parallel: 1 where both sublayers read the same.
    """

    width: int
    heads: int
    kv_heads: int
    head: int
    inner: int
    vocabulary: int
    activation: int
    turned: int
    window: int
    table: int
    centred: int
    norm_first: int
    is_parallel: int


class Read(NamedTuple):
    """Tokens to be read, several of a row among them, and what they see.

    Attributes:
        ids: (number,).
        rows: (number,) the row of the caches that each belongs to.
        positions: (number,) where each stands in its row.
        slots: (number, positions) where in its row of the caches that is which stands at each position up to its own;
            (1, positions) if that is the same for all.
        lengths: (rows,) positions of the source that each row sees; empty where there is none.
    """

    ids: NDArray[np.int64]
    rows: NDArray[np.int64]
    positions: NDArray[np.int64]
    slots: NDArray[np.int64]
    lengths: NDArray[np.int64]


class Found(NamedTuple):
    """Room for the best logits: what `lm.kernels.best.best` fills."""

    values: NDArray[np.float32]
    places: NDArray[np.int64]
    logprobs: NDArray[np.float32]


class Scales(NamedTuple):
    """The numbers of a model that are fractions: of norms, of embeddings, and the logits' soft cap, or 0."""

    epsilon: np.float32
    embedding: np.float32
    cap: np.float32


@njit
def _vector(address, length):
    """So many float32 at an address, or an empty vector where there is none."""
    return carray(pointer(address), (length if address else 0,), np.float32)


@njit
def _norms(x, weight, bias, shape, scales, out):
    weights, biases = _vector(weight, shape.width), _vector(bias, shape.width)
    for row in range(len(x)):
        normalise(x[row], weights, biases, scales.epsilon, shape.centred, out[row])


@njit
def _first_unknown(ids, vocabulary):
    """The place of the first ID that a vocabulary of so many doesn't have; -1 if it has all."""
    for place in range(len(ids)):
        if ids[place] < 0 or ids[place] >= vocabulary:
            return place
    return -1


@njit
def _embedded(read, model, shape, scales, like, x):
    table = carray(pointer(model[TOKENS]), (shape.vocabulary, shape.width), like.dtype)
    of_rows = _vector(model[TOKENS_SCALE], shape.vocabulary)
    for row in range(len(x)):
        scale = scales.embedding * (of_rows[read.ids[row]] if len(of_rows) else np.float32(1.0))
        for i in range(shape.width):
            x[row, i] = np.float32(table[read.ids[row], i]) * scale
    if model[POSITIONS]:
        vectors = carray(pointer(model[POSITIONS]), (shape.table, shape.width), np.float32)
        for row in range(len(x)):
            for i in range(shape.width):
                x[row, i] += vectors[read.positions[row], i]


@njit
def _heads_ready(projected, layer, positions, model, shape, scales, firsts, is_first):
    """Norms and rotations of the heads of queries and keys, and the mixture of values, in place."""
    head, turning = shape.head, shape.heads + shape.kv_heads
    query_norm, key_norm = _vector(layer[QUERY_NORM], head), _vector(layer[KEY_NORM], head)
    shares, empty = _vector(layer[SHARES], 2), _vector(0, 0)
    tables = carray(pointer(model[ROTATION]), (shape.table if model[ROTATION] else 0, 2, shape.turned), np.float32)
    for row in range(len(projected)):
        for index in range(turning):
            x = projected[row, index * head : (index + 1) * head]
            norm = query_norm if index < shape.heads else key_norm
            if len(norm):
                normalise(x, norm, empty, scales.epsilon, 0, x)
            if len(tables):
                turn(x, tables[positions[row], 0], tables[positions[row], 1])
        if len(shares):
            values = projected[row, turning * head :]
            if is_first:
                firsts[row] = values
            for i in range(len(values)):
                values[i] = shares[0] * firsts[row, i] + shares[1] * values[i]


@njit
def _attention(x, layer, cache, read, model, shape, scales, like, firsts, is_first, out, threads):
    """Add to `out` what attention makes of `x`; keys and values go into the cache."""
    number, head, kv_heads = len(x), shape.head, shape.kv_heads
    n_projected, n_attended = (shape.heads + 2 * kv_heads) * head, shape.heads * head
    projected = np.empty((number, n_projected), np.float32)
    weights = carray(pointer(layer[INPUT]), (n_projected, shape.width), like.dtype)
    product(
        weights, _vector(layer[INPUT_SCALE], n_projected), _vector(layer[INPUT_BIAS], n_projected), x, projected,
        plain(False), threads,
    )  # fmt: skip
    _heads_ready(projected, layer, read.positions, model, shape, scales, firsts, is_first)
    keys, values = _cached(cache, read, shape)
    for token in range(number):
        row, slot = read.rows[token], read.slots[token if len(read.slots) > 1 else 0, read.positions[token]]
        for index in range(kv_heads):
            key, value = keys[row, index, slot], values[row, index, slot]
            of_key = projected[token, (shape.heads + index) * head :]
            of_value = projected[token, (shape.heads + kv_heads + index) * head :]
            for i in range(head):
                key[i] = of_key[i]
            for i in range(head):
                value[i] = of_value[i]
    biases = carray(pointer(model[BIASES]), (shape.heads if model[BIASES] else 0, shape.table), np.float32)
    queries = np.ascontiguousarray(projected[:, :n_attended])
    _attended(
        queries, keys, values, read.rows, read.positions, read.slots, biases, shape.window, layer[OUTPUT],
        layer[OUTPUT_SCALE], layer[OUTPUT_BIAS], shape, like, out, threads,
    )  # fmt: skip


@njit
def _cross_attention(x, layer, memory, read, shape, scales, like, out, threads):
    """Add to `out` what `x` finds in the memory of a source."""
    width, empty = shape.heads * shape.head, _vector(0, 0)
    queries = np.empty((len(x), width), np.float32)
    weights = carray(pointer(layer[C_INPUT]), (width, shape.width), like.dtype)
    product(
        weights, _vector(layer[C_INPUT_SCALE], width), _vector(layer[C_INPUT_BIAS], width), x, queries, plain(False),
        threads,
    )  # fmt: skip
    norm = _vector(layer[C_QUERY_NORM], shape.head)
    for token in range(len(x) if len(norm) else 0):
        for first in range(0, width, shape.head):
            head = queries[token, first : first + shape.head]
            normalise(head, norm, empty, scales.epsilon, 0, head)
    keys, values = _cached(memory, read, shape)
    slots, last = np.arange(memory[2]).reshape(1, memory[2]), read.lengths[read.rows] - 1
    _attended(
        queries, keys, values, read.rows, last, slots, empty.reshape(0, 0), plain(0), layer[C_OUTPUT],
        layer[C_OUTPUT_SCALE], layer[C_OUTPUT_BIAS], shape, like, out, threads,
    )  # fmt: skip


@njit
def _cached(cache, read, shape):
    """The keys and values of a cache's rows."""
    size = (read.rows.max() + 1, shape.kv_heads, cache[2], shape.head)
    return carray(pointer(cache[0]), size, np.float32), carray(pointer(cache[1]), size, np.float32)


@njit
def _attended(
    queries, keys, values, rows, positions, slots, biases, window, weight, scale, bias, shape, like, out, threads
):
    """Add to `out` what a projection makes of what queries find."""
    number, width = queries.shape
    scores, found = np.empty((threads, slots.shape[1]), np.float32), np.empty_like(queries)
    by_head = (number, shape.heads, shape.head)
    attend(
        queries.reshape(by_head), keys, values, rows, positions, slots, biases, window, scores, found.reshape(by_head),
        threads,
    )  # fmt: skip
    weights = carray(pointer(weight), (shape.width, width), like.dtype)
    product(weights, _vector(scale, shape.width), _vector(bias, shape.width), found, out, plain(True), threads)


@njit
def _feed_forward(x, layer, shape, like, out, threads):
    """Add to `out` what the feed-forward layer makes of `x`."""
    width = shape.inner // 2 if shape.activation == SWIGLU else shape.inner
    inner = np.empty((len(x), shape.inner), np.float32)
    weights = carray(pointer(layer[UP]), (shape.inner, shape.width), like.dtype)
    activated(
        weights, _vector(layer[UP_SCALE], shape.inner), _vector(layer[UP_BIAS], shape.inner), x, inner,
        shape.activation, threads,
    )  # fmt: skip
    weights = carray(pointer(layer[DOWN]), (shape.width, width), like.dtype)
    fed = np.ascontiguousarray(inner[:, :width])
    product(
        weights, _vector(layer[DOWN_SCALE], shape.width), _vector(layer[DOWN_BIAS], shape.width), fed, out,
        plain(True), threads,
    )  # fmt: skip


@njit
def _predict(x, model, shape, scales, like, logits, threads):
    """What the output layer makes of final states."""
    weights = carray(pointer(model[HEAD]), (shape.vocabulary, shape.width), like.dtype)
    bias = _vector(model[HEAD_BIAS], shape.vocabulary)
    scale = _vector(model[HEAD_SCALE], shape.vocabulary)
    product(weights, scale, bias, x, logits, plain(False), threads)
    if scales.cap:
        for row in range(len(logits)):
            for i in range(shape.vocabulary):
                logits[row, i] = scales.cap * np.float32(np.tanh(logits[row, i] / scales.cap))


@njit
def _predict_best(x, model, shape, scales, like, found, threads):
    """The best ones of what the output layer makes of final states, of which there are never many at a time."""
    room = np.empty((min(_ROWS_IN_CACHE, len(x)), shape.vocabulary), np.float32)
    for begin in range(0, len(x), _ROWS_IN_CACHE):
        end = min(begin + _ROWS_IN_CACHE, len(x))
        logits = room[: end - begin]
        _predict(x[begin:end], model, shape, scales, like, logits, threads)
        best(logits, logits, found.values[begin:end], found.places[begin:end], found.logprobs[begin:end])


@njit(nogil=True)
def step(read, layers, caches, memories, model, shape, scales, like, logits, found, threads):
    """Read some tokens: the next of each row, or several of a row, each of which sees those before it.

    Args:
        read: the tokens.
        layers: (layers, len(LAYER)) addresses.
        caches: (layers, 3): the addresses of keys and values, each (rows, kv_heads, room, head) float32; and the room.
        memories: the same of the sources that are read by cross-attention, of which the room is the longest one's; or
            (layers, 0).
        model: (len(MODEL),) addresses.
        shape: the whole numbers.
        scales: the fractions.
        like: an empty array of the type of the matrices.
        logits: (number, vocabulary) float32, to be filled; or (0, vocabulary), if the best ones are wanted alone.
        found: those, to be filled as `lm.kernels.best.best` does.
        threads: how many share the work.

    Returns:
        The place of the first token that the vocabulary doesn't have, in which case nothing was read; else -1.
    """
    unknown = _first_unknown(read.ids, shape.vocabulary)
    if unknown >= 0:
        return unknown
    x = np.empty((len(read.ids), shape.width), np.float32)
    firsts = np.empty((len(read.ids), shape.kv_heads * shape.head), np.float32)
    _embedded(read, model, shape, scales, like, x)
    embedding, normed, also = x.copy(), np.empty_like(x), np.empty_like(x)
    of_stream, of_embedding = _vector(model[STREAM_SHARES], len(layers)), _vector(model[EMBEDDING_SHARES], len(layers))
    for index in range(len(layers)):
        layer, cache, first = layers[index], caches[index], index == 0
        if len(of_stream):
            x[:] = of_stream[index] * x + of_embedding[index] * embedding
        if shape.norm_first:
            _norms(x, layer[A_NORM], layer[A_NORM_BIAS], shape, scales, normed)
            if shape.is_parallel:
                _norms(x, layer[F_NORM], layer[F_NORM_BIAS], shape, scales, also)
            _attention(normed, layer, cache, read, model, shape, scales, like, firsts, first, x, threads)
            if layer[C_INPUT]:
                _norms(x, layer[C_NORM], layer[C_NORM_BIAS], shape, scales, normed)
                _cross_attention(normed, layer, memories[index], read, shape, scales, like, x, threads)
            if not shape.is_parallel:
                _norms(x, layer[F_NORM], layer[F_NORM_BIAS], shape, scales, also)
            _feed_forward(also, layer, shape, like, x, threads)
        else:
            normed[:] = x
            _attention(normed, layer, cache, read, model, shape, scales, like, firsts, first, x, threads)
            _norms(x, layer[A_NORM], layer[A_NORM_BIAS], shape, scales, x)
            if layer[C_INPUT]:
                normed[:] = x
                _cross_attention(normed, layer, memories[index], read, shape, scales, like, x, threads)
                _norms(x, layer[C_NORM], layer[C_NORM_BIAS], shape, scales, x)
            normed[:] = x
            _feed_forward(normed, layer, shape, like, x, threads)
            _norms(x, layer[F_NORM], layer[F_NORM_BIAS], shape, scales, x)
    if model[FINAL_NORM]:
        _norms(x, model[FINAL_NORM], model[FINAL_NORM_BIAS], shape, scales, x)
    if len(logits):
        _predict(x, model, shape, scales, like, logits, threads)
    else:
        _predict_best(x, model, shape, scales, like, found, threads)
    return -1
