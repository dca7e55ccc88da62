"""Attention inputs besides queries, keys and values: masks, positions and key-value caches.

A mask is a description. A tensor is made only for a kernel that cannot do without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, wraps
from typing import Any, ParamSpec, Protocol

import torch
from torch import Tensor

State = Tensor | tuple[Tensor, Tensor]
"""The hidden state of a recurrent layer, (1, rows, width); of an LSTM with the state of its cells."""


class KeyValueCache:
    """Keys and values of the positions that one attention layer has read so far, in buffers that grow by doubling."""

    def __init__(self) -> None:
        self.length = 0
        self._key: Tensor | None = None
        self._value: Tensor | None = None

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append (batch, kv_heads, n, head) keys and values, and return all keys and values so far."""
        start, self.length = self.length, self.length + key.shape[2]
        if self._key is None or self._value is None:  # without room: a memory never grows
            self._key, self._value = key.contiguous(), value.contiguous()
            return self._key, self._value
        self._key = _with_room(self._key, key, start, self.length)
        self._value = _with_room(self._value, value, start, self.length)
        self._key[:, :, start : self.length] = key
        self._value[:, :, start : self.length] = value
        return self.contents()

    def grow(self, positions: int) -> None:
        """Make room for so many positions more, and count them: somebody else writes them into the `buffers`."""
        start, self.length = self.length, self.length + positions
        key, value = self.buffers()
        if key.shape[2] < self.length:
            self._key, self._value = (_with_room(buffer, buffer, start, self.length) for buffer in (key, value))

    def buffers(self) -> tuple[Tensor, Tensor]:
        """Keys and values with the room that they have, (batch, kv_heads, room, head) each."""
        assert self._key is not None
        assert self._value is not None
        return self._key, self._value

    def move(self, key: Tensor, value: Tensor) -> None:
        """Go on in other buffers, (batch, kv_heads, room, head) each, which are zero beyond what is here."""
        for buffer, held in zip((key, value), self.contents(), strict=True):
            buffer[:, :, : self.length] = held
            buffer[:, :, self.length :] = 0.0
        self._key, self._value = key, value

    def contents(self) -> tuple[Tensor, Tensor]:
        """Keys and values so far, (batch, kv_heads, length, head) each."""
        key, value = self.buffers()
        return key[:, :, : self.length], value[:, :, : self.length]

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was; rows may be repeated or left out."""
        if self._key is not None and self._value is not None:
            self._key = self._key.index_select(0, rows)
            self._value = self._value.index_select(0, rows)

    def select(self, positions: Tensor) -> None:
        """Keep only these positions of each row, in this order; `positions` is (batch, kept)."""
        if self._key is not None and self._value is not None:
            batch, heads, room, head = self._key.shape
            first = torch.arange(0, batch * heads * room, room, device=positions.device).view(batch, heads, 1)
            places = (first + positions[:, None]).flatten()
            self.length = positions.shape[1]
            for buffer in (self._key, self._value):
                kept = buffer.view(-1, head).index_select(0, places)
                buffer[:, :, : self.length] = kept.view(batch, heads, -1, head)

    def truncate(self, length: int) -> None:
        """Forget the positions from `length` on."""
        self.length = min(self.length, length)


def _with_room(buffer: Tensor, like: Tensor, used: int, needed: int) -> Tensor:
    """A buffer for `needed` positions or more that holds the first `used` positions of the old one."""
    if buffer.shape[2] >= needed:
        return buffer
    batch, heads, _, head = like.shape
    grown = like.new_empty(batch, heads, max(needed, 2 * used, 64), head)
    grown[:, :, :used] = buffer[:, :, :used]
    return grown


class DecoderCache:
    """What the layers of a decoder remember from step to step.

    Attributes:
        own: for each layer, keys and values of the decoder's own positions.
        memory: for each layer, keys and values of the memory that cross-attention reads; they are computed once.
    """

    def __init__(self, own: Sequence[KeyValueCache]) -> None:
        self.own = own
        self.memory = [KeyValueCache() for _ in own]

    @property
    def length(self) -> int:
        """Positions fed so far."""
        return self.own[0].length

    def reorder(self, rows: Tensor, *, same_sources: bool = False) -> None:
        """Row i becomes what row `rows[i]` was, in every layer; with `same_sources` its memory is that row's."""
        for layer in self.own if same_sources else (*self.own, *self.memory):
            layer.reorder(rows)

    def select(self, positions: Tensor) -> None:
        """Keep only some of its own positions of each row, (batch, kept), in every layer; the memory stays."""
        for layer in self.own:
            layer.select(positions)

    def truncate(self, length: int) -> None:
        """Forget its own positions from `length` on; the memory stays."""
        for layer in self.own:
            layer.truncate(length)


class RecurrentCache:
    """What a recurrent decoder remembers from step to step: states after the last position, and of none before.

    Attributes:
        length: positions fed so far.
        states: of each layer after them.
        memory: keys and values of the source that attention reads; they are computed once.
    """

    def __init__(self) -> None:
        self.length = 0
        self.states: Sequence[State] = ()
        self.memory = [KeyValueCache()]

    def advance(self, states: Sequence[State], positions: int) -> None:
        """The states after so many more positions."""
        self.states, self.length = states, self.length + positions

    def reorder(self, rows: Tensor, *, same_sources: bool = False) -> None:
        """Row i becomes what row `rows[i]` was; with `same_sources` the memory of row i is that of row `rows[i]`."""
        self.states = [_rows_of(state, rows) for state in self.states]
        for layer in () if same_sources else self.memory:
            layer.reorder(rows)

    def truncate(self, length: int) -> None:
        """Forget the positions from `length` on: all of them, for earlier states are not kept; the memory stays."""
        if length < self.length:
            self.length, self.states = 0, ()


def _rows_of(state: State, rows: Tensor) -> State:
    if isinstance(state, Tensor):
        return state.index_select(1, rows)
    hidden, cells = state
    return hidden.index_select(1, rows), cells.index_select(1, rows)


P = ParamSpec("P")


def remembered(compute: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """A function that keeps what it gave for the latest arguments; torch.compile sees one that keeps nothing."""
    kept = lru_cache(maxsize=64)(compute)

    @wraps(compute)
    def given(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        if torch.compiler.is_compiling():
            return compute(*args, **kwargs)
        with torch.inference_mode(False):  # it outlives an evaluation, and training differentiates past it
            return kept(*args, **kwargs)  # type: ignore[arg-type]

    return given


class Pattern(Protocol):
    """Which keys each query sees, besides what makes it causal; it can be compared and hashed."""

    @property
    def block(self) -> int:
        """Positions of a block."""

    @property
    def whole(self) -> int:
        """The length up to which all see all."""

    @property
    def everywhere(self) -> int:
        """Blocks at the beginning whose queries see every key."""

    def most(self, *, is_causal: bool) -> int:
        """How many blocks any other sees at most."""

    def connected(self, n_blocks: int) -> Tensor:
        """(n_blocks, n_blocks) booleans: whether any query of a block sees any key of another."""

    def sees(self, queries: Tensor, keys: Tensor, *, within: int) -> Tensor:
        """Whether the queries at some positions see the keys at others, all of them less than `within`; broadcast."""

    def earliest(self, query: int) -> int:
        """The first position that this query or a later one sees."""


@dataclass(frozen=True)
class Mask:
    """Which keys each query may see. The parts restrict each other; with none, every query sees every key.

    Queries are the last positions of the keys: with n_queries < n_keys (a cache), query i stands at position
    n_keys - n_queries + i.

    Attributes:
        is_causal: a query sees its own position and earlier ones.
        key_lengths: (batch,) how many keys of each row are real; the rest is padding.
        pattern: which positions see which, where not all do.
        pairs: True where a query sees a key, broadcastable to (batch, 1, queries, keys).
        bias: added to the scores, broadcastable to (batch, heads, queries, keys).
    """

    is_causal: bool = False
    key_lengths: Tensor | None = None
    pattern: Pattern | None = None
    pairs: Tensor | None = None
    bias: Tensor | None = None

    @classmethod
    def causal(cls, *, pattern: Pattern | None = None, bias: Tensor | None = None) -> Mask:
        """Each position sees itself and what came before, of which a pattern may leave some out."""
        return cls(is_causal=True, pattern=pattern, bias=bias)

    @classmethod
    def keys(cls, lengths: Tensor | None) -> Mask:
        """Each position sees the first `lengths[row]` keys of its row; all of them if there are no lengths."""
        return cls(key_lengths=lengths)

    def with_bias(self, bias: Tensor) -> Mask:
        """This mask, with a bias more; it is broadcastable to (batch, heads, queries, keys)."""
        return replace(self, bias=bias if self.bias is None else self.bias + bias)

    def within(self, pattern: Pattern) -> Mask:
        """This mask, restricted to a pattern."""
        return replace(self, pattern=pattern)

    def is_flag(self, n_queries: int, n_keys: int) -> bool:
        """Whether a kernel's own `is_causal` flag, or nothing at all, says everything that this mask says."""
        if self.key_lengths is not None or self.pairs is not None or self.bias is not None:
            return False
        if self.pattern is not None and n_keys > self.pattern.whole:
            return False
        return not self.is_causal or n_queries in (1, n_keys)

    def allowed(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor | None:
        """(batch or 1, 1, n_queries, n_keys) booleans, True where a query sees a key; None where all see all."""
        allowed = self.pairs
        if self.is_causal or self.pattern is not None:
            by_position = self._by_position(n_queries, n_keys, device)
            allowed = by_position if allowed is None else allowed & by_position
        if self.key_lengths is not None:
            real = (torch.arange(n_keys, device=device) < self.key_lengths[:, None])[:, None, None]
            allowed = real if allowed is None else allowed & real
        return allowed

    def _by_position(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor:
        """(1, 1, n_queries, n_keys) booleans: what the places of queries and keys allow."""
        queries = torch.arange(n_keys - n_queries, n_keys, device=device)[:, None]
        keys = torch.arange(n_keys, device=device)
        if self.pattern is None:
            return (queries >= keys)[None, None]
        seen = self.pattern.sees(queries, keys, within=n_keys)
        return (seen & (queries >= keys) if self.is_causal else seen)[None, None]


def padding(lengths: Tensor, longest: int) -> Tensor:
    """(rows, longest): -inf where a row of so many positions has ended, else zero; float32."""
    is_padding = torch.arange(longest, device=lengths.device) >= lengths[:, None]
    return torch.zeros(is_padding.shape, device=lengths.device).masked_fill_(is_padding, -torch.inf)


@dataclass(frozen=True)
class Rotation:
    """Turns pairs of features (i, i + turned/2) by an angle that grows with the position.

    Attributes:
        cos: (length, turned), both halves alike; (batch, 1, length, turned) where rows stand elsewhere than others.
            What a head has beyond the turned features stays as it is.
        sin: like `cos`, but the first half negative.
    """

    cos: Tensor
    sin: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate (batch, heads, length, head).

        Source: Su et al. 2021, with features paired as in GPT-NeoX and Llama.
        """
        turned = self.cos.shape[-1]
        if turned == x.shape[-1]:
            return self._turn(x)
        return torch.cat((self._turn(x[..., :turned]), x[..., turned:]), dim=-1)

    def _turn(self, x: Tensor) -> Tensor:
        return _Rotated.apply(x, self.cos.to(x.dtype), self.sin.to(x.dtype))  # type: ignore[no-untyped-call]

    def repeated(self, times: int) -> Rotation:
        """The rotation of as many sequences of the same positions, one after the other."""
        return self if times == 1 else Rotation(self.cos.repeat(times, 1), self.sin.repeat(times, 1))

    def every(self, step: int, *, first: int) -> Rotation:
        """The rotation of every `step`-th position, from `first` on."""
        return Rotation(self.cos[first::step], self.sin[first::step])


class _Rotated(torch.autograd.Function):
    """The gradient of a rotation is turned back: three passes, where torch on its own takes seven."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # noqa: ANN401 (torch's own)
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        cos, sin = ctx.saved_tensors
        return _turned(gradient, cos, -sin), None, None


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return (x * cos).addcmul_(x.roll(x.shape[-1] // 2, -1), sin)


def rotations(length: int, frequencies: Tensor, *, scale: float = 1.0) -> Tensor:
    """Cosines and sines of the angles by which rotary positions turn each pair of features, as `Rotation` has them.

    Args:
        length: number of positions.
        frequencies: (turned/2,) float64, radians from one position to the next.
        scale: of cosines and sines alike.

    Returns:
        (length, 2, turned) float32; features i and i + turned/2 turn by position · frequencies[i].

    Source: Su et al. 2021, section 3.2.
    """
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
    sin = torch.cat((-angles.sin(), angles.sin()), dim=1)
    return torch.stack((angles.cos().repeat(1, 2), sin), dim=1).mul_(scale).float()


@dataclass(frozen=True)
class RelativeTables:
    """The vectors of one layer that are added to its keys and values, as far as each lies from the query.

    Neither sum is ever made: a query is multiplied by each vector once, and the products are handed to the keys; the
    weights of the keys are summed by distance, and the sums weigh the vectors.

    Attributes:
        rows: (batch or 1, 1, queries, keys) which row of the tables belongs to each pair.
        keys: (kv_heads, distances, head).
        values: like `keys`.
        also: what another kind of distance adds besides.

    Source: Shaw et al. 2018, equations 3 and 4, and section 3.3.
    """

    rows: Tensor
    keys: Tensor
    values: Tensor
    also: RelativeTables | None = None

    def scores(self, query: Tensor) -> Tensor:
        """What the keys' vectors add to the scores of (batch, heads, queries, head): (batch, heads, queries, keys)."""
        products = _by_group(query * query.shape[-1] ** -0.5, self.keys.transpose(-1, -2))
        scores = products.gather(-1, self._rows_of(products))
        return scores if self.also is None else scores + self.also.scores(query)

    def output(self, weights: Tensor) -> Tensor:
        """What (batch, heads, queries, keys) weights give of the values' vectors: (batch, heads, queries, head).

        Weights are summed in float32 at least: many keys share the rows of the greatest distances.
        """
        exact = weights.to(torch.promote_types(weights.dtype, torch.float32))
        summed = exact.new_zeros(*weights.shape[:-1], self.values.shape[1])
        summed = summed.scatter_add(-1, self._rows_of(weights), exact)
        output = _by_group(summed.to(weights.dtype), self.values)
        return output if self.also is None else output + self.also.output(weights)

    def _rows_of(self, of_pairs: Tensor) -> Tensor:
        batch, heads = of_pairs.shape[:2]
        return self.rows.expand(batch, heads, -1, -1)


def _by_group(x: Tensor, tables: Tensor) -> Tensor:
    """(batch, heads, queries, n) times the (kv_heads, n, m) of each head's group -> (batch, heads, queries, m)."""
    batch, heads, queries, n = x.shape
    with torch.autocast(x.device.type, enabled=False):
        grouped = x.reshape(batch, len(tables), -1, n) @ tables.to(x.dtype)
    return grouped.view(batch, heads, queries, -1)


class FirstValues:
    """The values of the first layer of a stack, which every layer mixes with its own.

    Source: Zhou et al. 2024 (Value Residual Learning); for the first layer too, as in Jordan et al. 2024
    (modded-nanogpt), so that all are alike.
    """

    def __init__(self) -> None:
        self._values: Tensor | None = None

    def mix(self, value: Tensor, shares: Tensor) -> Tensor:
        """Mix the values of the next layer with those of the first, in learned shares.

        A share is a tensor without dimensions, so under autocast the values keep their type.

        Args:
            value: (batch, kv_heads, length, head) of the next layer; the first call sets those of the first layer.
            shares: (2,), the share of the first layer's values and that of the layer's own.

        Returns:
            (batch, kv_heads, length, head).
        """
        if self._values is None:
            self._values = value
        of_first, of_own = shares
        return of_first * self._values + of_own * value


class ByDistance(Protocol):
    """Positions that attention asks for what the distances of some pairs add, where it never looks at all pairs."""

    def between(self, query: Tensor, distances: Tensor, *, layer: int) -> tuple[Tensor, RelativeTables | None]:
        """What distances add in a layer, counted from 0.

        Args:
            query: (rows, heads, queries, head).
            distances: (rows or 1, queries, keys) how far each key stands after each query.
            layer: the layer.

        Returns:
            What is added to the scores, broadcastable to (rows, heads, queries, keys), and what to the values, if
            anything.
        """


@dataclass(frozen=True)
class Scope:
    """What the positions of a batch attend to in each layer of a stack, and where they stand.

    Self-attention has one scope, and the cross-attention of a decoder that reads a source another. A model says what
    is seen; its stack adds what its positions are and the first values, which all layers share.

    Attributes:
        mask: which keys each query may see.
        memory: (batch, memory length, d_model) states to attend to, instead of the queries' own.
        caches: for each layer, keys and values of earlier positions, extended in place; those of a memory are
            computed once.
        start: the position of the first query.
        branches: how many continuations of the same past stand beside each other in a row. Each goes on from `start`,
            and the mask keeps them apart.
        end: a position after those of all queries, where `query_positions` are given and it is known; else it is
            looked for among them, and a GPU is waited for.
        query_positions: (batch, queries) where the queries stand, branches included, if not one after the other from
            `start` on in each row.
        key_positions: (batch, keys) where the keys stand, if not one after the other from 0 on. It matters to schemes
            that know distances; what a query does not see may have any.
        rotation: turns queries and keys by their positions (rotary embeddings).
        relative: for each layer, what is added to keys and values by their distance.
        by_distance: what knows what distances add, for layers that ask themselves.
        first_values: the values of the first layer, for layers that mix them with their own.
        lengths: (batch,) how many positions of each row are real; what comes after them is padding, which no expert
            takes. None if all are.
        recurrent: what recurrent layers, which attend to nothing, remember of earlier positions; changed in place.
    """

    mask: Mask
    memory: Tensor | None = None
    caches: Sequence[KeyValueCache] | None = None
    start: int = 0
    branches: int = 1
    end: int | None = None
    query_positions: Tensor | None = None
    key_positions: Tensor | None = None
    rotation: Rotation | None = None
    relative: Sequence[RelativeTables] | None = None
    by_distance: ByDistance | None = None
    first_values: FirstValues | None = None
    lengths: Tensor | None = None
    recurrent: RecurrentCache | None = None

    def cache(self, layer: int) -> KeyValueCache | None:
        """The cache of a layer, counted from 0, if there are caches."""
        return None if self.caches is None else self.caches[layer]

    def tables(self, layer: int) -> RelativeTables | None:
        """What a layer, counted from 0, adds to keys and values by their distance, if anything."""
        return None if self.relative is None else self.relative[layer]

    def positions(self, length: int, device: torch.device) -> Tensor:
        """(batch or 1, length) where each of so many queries stands, branches included."""
        if self.query_positions is not None:
            return self.query_positions
        end = self.start + length // self.branches
        return torch.arange(self.start, end, device=device).repeat(self.branches)[None]

    def with_tables(self, tables: Sequence[RelativeTables]) -> Scope:
        """This scope, with what a kind of distance adds to the keys and values of each layer, besides others."""
        if self.relative is not None:
            tables = [replace(one, also=other) for one, other in zip(tables, self.relative, strict=True)]
        return replace(self, relative=tables)

    def distances(self, length: int, device: torch.device) -> Tensor:
        """How far each key stands after each of `length` queries, branches included; negative where it comes first.

        Returns:
            (batch or 1, queries, keys).
        """
        end, queries = self.start + length // self.branches, self.positions(length, device)
        assert self.branches == 1 or self.key_positions is not None, "the keys of branches don't stand in a line"
        keys = torch.arange(end, device=device)[None] if self.key_positions is None else self.key_positions
        return keys[:, None, :] - queries[:, :, None]
