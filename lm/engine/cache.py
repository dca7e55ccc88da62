"""The KV cache of a decode session: what an engine has read of each row, and where that lies.

A cache has one of two layouts. In a `RowCache` each row has a place of its own, and repeated rows are copied: for
samples, which part for good, and for recurrent states. In a `SharedCache` the rows of one prompt or source share one
place, and repeated rows share the slots of their past: for beams, which keep most of it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Protocol

import torch
from torch import Tensor

from lm.model.attention import DecoderCache, KeyValueCache, Mask, Scope, padding
from lm.model.transformer import DecoderOnly, EncoderDecoder
from lm.model.variants.recurrent import RecurrentCache, RecurrentScope, State

DecoderModel = DecoderOnly | EncoderDecoder


@dataclass(frozen=True, slots=True)
class Reading:
    """Tokens that compiled code is to read, and where their keys and values go.

    Attributes:
        tokens: (number,) ids; those of a row one after the other.
        rows: (number,) the row of the layers' buffers that each token belongs to.
        positions: (number,) where it stands in its row.
        layers: the cache of each layer, with room for the new positions.
        slots: (number, positions) the slot of each position up to the token's own; None if it is the position itself.
        memory: of each layer of an encoder-decoder, keys and values of each row's source.
        lengths: (rows,) how many of these are real; None without a memory.
    """

    tokens: Tensor
    rows: Tensor
    positions: Tensor
    layers: Sequence[KeyValueCache]
    slots: Tensor | None = None
    memory: Sequence[KeyValueCache] = ()
    lengths: Tensor | None = None


class KVCache(Protocol):
    """What an engine remembers of the rows of a session, which are numbered from 0.

    Attributes:
        lengths: positions that it holds of each row.
        moves_freely: whether rows leave at no cost; else moving costs about as much as a decode step.
    """

    lengths: list[int]
    moves_freely: bool

    def is_new(self, row: int) -> bool:
        """Whether the window of a row is to be read from its beginning."""

    def hidden(
        self, model: DecoderModel, tokens: Tensor, rows: Sequence[int], positions: Sequence[int], lengths: Sequence[int]
    ) -> Tensor:
        """(rows, n, d_model) final states by PyTorch; arguments as of `lm.engine.engine.Engine.forward`."""

    def reading(self, tokens: Tensor, rows: Sequence[int], positions: Sequence[int]) -> Reading:
        """What compiled code is to read; the positions count as held then."""

    def add(self, rows: int) -> None:
        """Take in so many rows, of which nothing is held."""

    def select(self, rows: Sequence[int]) -> None:
        """Row i becomes what row `rows[i]` was; rows may be repeated or left out."""

    def release(self, rows: Collection[int]) -> None:
        """Let rows go; the others keep their order."""

    def truncate(self, lengths: Sequence[int]) -> None:
        """Hold at most so many positions of each row; none of a row whose state of then is not kept."""

    def forget(self, rows: Collection[int]) -> None:
        """Hold nothing of some rows."""


class Source:
    """What an encoder made of the sources, one a row of the cache.

    Attributes:
        output: (sources, source length, d_model).
        lengths: (sources,) how many positions are real; None if all are.
        layers: of each layer of the decoder, keys and values of the output; computed once.
    """

    def __init__(self, model: EncoderDecoder, source: Tensor, lengths: Tensor | None) -> None:
        """Encode (sources, length) ids, or (sources, length, 4) with trees, on the model's device."""
        self.output, self.lengths = model.encode(source, lengths=lengths), lengths
        self.layers: Sequence[KeyValueCache] = ()
        self._of = torch.arange(len(source), device=source.device)

    def select(self, rows: Tensor, *, layers: bool = True) -> None:
        """Row i reads the source of row `rows[i]`; `layers` move too, unless somebody else moves them."""
        of = self._of.index_select(0, rows)
        if torch.equal(of, self._of):
            return
        self._of, self.output = of, self.output.index_select(0, rows)
        self.lengths = None if self.lengths is None else self.lengths.index_select(0, rows)
        for layer in self.layers if layers else ():
            layer.reorder(rows)


_FIRST_SLOTS = 32
"""Slots before it is first looked for those that are no longer needed."""


class RowLayer(KeyValueCache):
    """Keys and values of one layer, of each row at the places of its positions.

    What a row has beyond its own length is left over from others, and a mask hides it. It was a number at least: what
    nobody has written is zero.
    """

    def __init__(self, most: int) -> None:
        """Of rows of at most so many positions."""
        super().__init__()
        self._most = most
        self._places: Tensor | int = 0

    @classmethod
    def within(cls, key: Tensor, value: Tensor, places: Tensor) -> RowLayer:
        """A cache that is all of these (rows, kv_heads, length, head) buffers, aimed at (rows,) `places` in them."""
        cache = cls(key.shape[2])
        cache._key, cache._value, cache._places, cache.length = key, value, places, key.shape[2]
        return cache

    def put(self, rows: Tensor, key: Tensor, value: Tensor) -> None:
        """Some rows begin with these (rows, kv_heads, length, head) keys and values."""
        if self._key is None and torch.equal(rows, torch.arange(len(key), device=rows.device)):
            self._key, self._value, self.length = key, value, key.shape[2]
            return
        n_rows, length = int(rows.max()) + 1, key.shape[2]
        self._key, self._value = (
            _with_room(buffer, like, n_rows, length, most=self._most)
            for buffer, like in ((self._key, key), (self._value, value))
        )
        self.length = max(self.length, length)
        self._key[rows, :, :length] = key
        self._value[rows, :, :length] = value

    def aim(self, places: Tensor | int, end: int) -> None:
        """Say where the next positions of each row go, (rows,) or the same for all; all of them lie before `end`."""
        assert self._key is not None
        assert self._value is not None
        self._places, self.length = places, end
        self._key, self._value = (
            _with_room(buffer, buffer, len(buffer), end, most=self._most) for buffer in (self._key, self._value)
        )

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append (rows, kv_heads, n, head) keys and values where it was aimed at, and return those of all positions."""
        for buffer, fresh in ((self._key, key), (self._value, value)):
            assert buffer is not None
            if isinstance(self._places, int):
                buffer[:, :, self._places : self._places + fresh.shape[2]] = fresh
            else:
                rows, n = (torch.arange(size, device=buffer.device) for size in (len(buffer), fresh.shape[2]))
                buffer[rows[:, None], :, self._places[:, None] + n] = fresh.transpose(1, 2)
        return self.contents()


def _with_room(buffer: Tensor | None, like: Tensor, rows: int, length: int, *, most: int) -> Tensor:
    """A buffer for so many rows and positions or more that holds what the old one held; it grows by doubling."""
    if buffer is None:
        return like.new_zeros(rows, like.shape[1], length, like.shape[3])
    n_rows, heads, room, head = buffer.shape
    if n_rows >= rows and room >= length:
        return buffer
    longer = room if room >= length else max(length, min(2 * room, most))
    grown = buffer.new_zeros(max(rows, n_rows), heads, longer, head)
    grown[:n_rows, :, :room] = buffer
    return grown


class RowCache:
    """A cache in which each row has a place of its own, whatever its length; it is written in place.

    A row that is released leaves its place to the next one that comes. Some rows begin with a shared prefix, which is
    read once.

    Attributes:
        lengths: see `KVCache`.
        moves_freely: see `KVCache`.
        places: of each row, in the buffers.
        n_places: places that there are, nobody's included.
        prefix: ids that were read for rows to come, see `share`.

    Source: Yu et al. 2022 (Orca), section 3.2 (iteration-level scheduling).
    """

    moves_freely = False

    def __init__(self, model: DecoderModel, *, remembers: bool = True, source: Source | None = None) -> None:
        """Of no rows yet, or of one for each source.

        Args:
            model: in eval mode.
            remembers: else nothing is held, and all is read again each time: the reference, and compressed attention,
                whose keys cover several positions of a row and other ones of the next.
            source: what an encoder made of the rows' sources.
        """
        config = model.config
        self._like, self._places_keys = next(model.parameters()), config.places_keys
        self._remembers, self._source = remembers, source
        self.lengths: list[int] = []
        self.places: list[int] = []
        self._free: list[int] = []  # nobody's places, the last one to be given away first
        self.n_places = 0
        self.prefix: tuple[int, ...] = ()
        self._read_prefix: DecoderCache | RecurrentCache | None = None
        self._states = RowStates() if config.is_recurrent else None
        self.own = [] if config.is_recurrent else [RowLayer(config.context_length) for _ in range(config.n_layers)]
        if source is not None:
            self.add(len(source.output))

    def is_new(self, row: int) -> bool:
        """Whether the window of a row is to be read from its beginning."""
        return not self._remembers or not self.lengths[row]

    def add(self, rows: int) -> None:
        """Take in so many rows, of which nothing is held."""
        missing = rows - len(self._free)
        if missing > 0:
            self._free = [*range(self.n_places + missing - 1, self.n_places - 1, -1), *self._free]
            self.n_places += missing
        self.places += [self._free.pop() for _ in range(rows)]
        self.lengths += [0] * rows

    def share(self, model: DecoderOnly, prefix: Sequence[int]) -> None:
        """Read what many of the rows to come begin with; nothing if the cache holds nothing."""
        prefix = tuple(prefix) if self._remembers else ()
        if prefix != self.prefix:
            self.prefix, self._read_prefix = prefix, model.new_cache() if prefix else None
            if prefix:
                model.hidden(torch.tensor([prefix], device=self._like.device), cache=self._read_prefix)

    def hidden(
        self, model: DecoderModel, tokens: Tensor, rows: Sequence[int], positions: Sequence[int], lengths: Sequence[int]
    ) -> Tensor:
        """See `KVCache`."""
        if self.is_new(rows[0]):
            return self._begin(model, tokens, rows, positions, lengths)
        n = tokens.shape[1]
        batch, starts = self.packed(tokens, rows, positions)
        scope = self._scope(starts, n)
        hidden = model.decode(batch.to(self._like.device), scope, self._seen_source())
        self.advance(rows, n)
        places = self.places_of(rows)
        return hidden if places == list(range(len(hidden))) else hidden.index_select(0, self._index(places))

    def _begin(
        self, model: DecoderModel, tokens: Tensor, rows: Sequence[int], positions: Sequence[int], lengths: Sequence[int]
    ) -> Tensor:
        """Read some rows from their beginning, or from the end of the prefix; padding after them is not seen."""
        cache = copy.deepcopy(self._read_prefix) if positions[0] else model.new_cache()
        assert cache is not None
        if positions[0]:
            cache.reorder(self._index([0] * len(rows)))
        tokens, held = tokens.to(self._like.device), cache if self._remembers else None
        real = None if min(lengths) == tokens.shape[1] else self._index(lengths)
        if self._source is None:
            assert isinstance(model, DecoderOnly)
            hidden = model.hidden(tokens, cache=held, target_lengths=real)
        else:
            assert isinstance(model, EncoderDecoder)
            cache.memory = list(self._source.layers) or cache.memory
            hidden = model.hidden(
                tokens, memory=self._source.output, lengths=self._source.lengths, cache=held, target_lengths=real
            )
            self._source.layers = cache.memory if self._remembers else ()
        if self._remembers:
            places = self._index(self.places_of(rows))
            if isinstance(cache, RecurrentCache):
                assert self._states is not None
                self._states.put(places, cache)
            else:
                for layer, read in zip(self.own, cache.own, strict=True):
                    layer.put(places, *read.contents())
            for row, position, length in zip(rows, positions, lengths, strict=True):
                self.lengths[row] = position + length
        return hidden

    def copy(self, rows: Sequence[int], others: Sequence[int]) -> None:
        """What is held of some rows becomes what is held of others."""
        if not self._remembers:
            return
        to, of = self._index(self.places_of(rows)), self._index(self.places_of(others))
        for layer in self.own:
            layer.put(to, *(part.index_select(0, of) for part in layer.contents()))
        if self._states is not None:
            self._states.copy(to, of)
        for row, other in zip(rows, others, strict=True):
            self.lengths[row] = self.lengths[other]

    def packed(self, tokens: Tensor, rows: Sequence[int], positions: Sequence[int]) -> tuple[Tensor, list[int]]:
        """(places, n) tokens, and where the first of them stands in each place; nobody's are anywhere."""
        self._close_up(rows)
        places = self.places_of(rows)
        if places == list(range(self.n_places)):
            return tokens, list(positions)
        batch, of_place = tokens.new_zeros(self.n_places, tokens.shape[1]), dict(zip(places, positions, strict=True))
        batch[places] = tokens
        least = min(positions)
        return batch, [of_place.get(place, least) for place in range(self.n_places)]

    def reading(self, tokens: Tensor, rows: Sequence[int], positions: Sequence[int]) -> Reading:
        """See `KVCache`."""
        n = tokens.shape[1]
        self._close_up(rows)
        self.make_room(max(positions) + n)
        self.advance(rows, n)
        places, starts = torch.tensor(self.places_of(rows)), torch.tensor(positions)
        if n > 1:
            places, starts = places.repeat_interleave(n), (starts[:, None] + torch.arange(n)).flatten()
        return Reading(tokens.flatten(), places, starts, self.own)

    def make_room(self, end: int) -> None:
        """See that positions before `end` can be written into the layers' buffers."""
        for layer in self.own:
            layer.aim(0, end)

    def advance(self, rows: Sequence[int], n: int) -> None:
        """Count `n` more positions of some rows."""
        for row in rows:
            self.lengths[row] += n

    def _scope(self, starts: Sequence[int], n: int) -> Scope:
        """What the next `n` tokens of each place see: what it holds, and themselves up to their own position."""
        first = max(starts)
        is_even = min(starts) == first
        if self._states is not None:
            at = None if is_even else self._index(starts)[:, None] + torch.arange(n, device=self._like.device)
            return RecurrentScope(Mask.causal(), recurrent=self._states, start=first, query_positions=at)
        places = first if is_even else self._index(starts)
        for layer in self.own:
            layer.aim(places, first + n)
        if isinstance(places, int):
            return Scope(Mask.causal(), caches=self.own, start=first)
        return row_scope(self.own, places, n, first + n, self._like.dtype, places_keys=self._places_keys)

    def _seen_source(self) -> Scope | None:
        source = self._source
        if source is None:
            return None
        return Scope(mask=Mask.keys(source.lengths), memory=source.output, caches=source.layers)

    def select(self, rows: Sequence[int]) -> None:
        """Row i becomes what row `rows[i]` was; rows may be repeated or left out. All move, in one copy."""
        if list(rows) != list(range(len(self.places))) or len(self.places) < self.n_places:
            self._move(self.places_of(rows))
            self.lengths = [self.lengths[row] for row in rows]

    def release(self, rows: Collection[int]) -> None:
        """Let rows go; the others keep their order, and their places while more than half of these are somebody's."""
        gone = set(rows)
        self._free += [place for row, place in enumerate(self.places) if row in gone]
        self.places = [place for row, place in enumerate(self.places) if row not in gone]
        self.lengths = [length for row, length in enumerate(self.lengths) if row not in gone]

    def _close_up(self, rows: Sequence[int]) -> None:
        """Give up nobody's places where all rows go on, and have half of the places at most."""
        if 2 * len(rows) <= self.n_places and len(rows) == len(self.places):
            self._move(self.places)

    def _move(self, places: Sequence[int]) -> None:
        """Have place i be what place `places[i]` was."""
        index = self._index(places)
        for layer in self.own:
            layer.reorder(index)
        if self._states is not None:
            self._states.reorder(index)
        if self._source is not None:
            self._source.select(index)
        self.places, self._free, self.n_places = list(range(len(places))), [], len(places)

    def truncate(self, lengths: Sequence[int]) -> None:
        """Hold at most so many positions of each row; nothing of one whose recurrent state of then is not kept."""
        for row, (held, length) in enumerate(zip(self.lengths, lengths, strict=True)):
            self.lengths[row] = held if held <= length else 0 if self._states is not None else length

    def forget(self, rows: Collection[int]) -> None:
        """Hold nothing of some rows."""
        for row in rows:
            self.lengths[row] = 0

    def places_of(self, rows: Sequence[int]) -> list[int]:
        """The place of each row."""
        return [self.places[row] for row in rows]

    def _index(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self._like.device)


def row_scope(
    layers: Sequence[KeyValueCache], places: Tensor, n: int, end: int, dtype: torch.dtype, *, places_keys: bool
) -> Scope:
    """What the next `n` tokens of each row see: what its row holds, and themselves up to their own position.

    Args:
        layers: their caches, which give back the keys and values of all positions before `end`.
        places: (rows,) where the first of them stands in its row.
        n: tokens of each row.
        end: after all of these.
        dtype: of the model.
        places_keys: whether attention has to know where keys stand.
    """
    queries = places[:, None] if n == 1 else places[:, None] + torch.arange(n, device=places.device)
    return Scope(
        Mask(bias=padding(queries.flatten() + 1, end).view(len(places), 1, n, end).to(dtype)), caches=layers,
        start=end - n, end=end, query_positions=queries,
        key_positions=torch.arange(end, device=places.device)[None] if places_keys else None,
    )  # fmt: skip


class SharedCache:
    """A cache in which the rows of one prompt or source are continuations of one past, and share its slots.

    All rows have as many tokens after what they begin with: a prompt, or the source of a decoder-only model that
    translates, both read at once; or nothing, where an encoder has read the source.

    Attributes:
        lengths: see `KVCache`.
        moves_freely: see `KVCache`; compiled code finds prompts and sources where they are.
    """

    def __init__(self, model: DecoderModel, *, source: Source | None = None) -> None:
        """Of no rows yet, or of one for each source."""
        self._like, self._places_keys, self._source = next(model.parameters()), model.config.places_keys, source
        self.lengths: list[int] = []
        self.moves_freely = False
        self._slots: Slots | None
        self._cache, self._slots = _new_cache(model), None
        if source is not None:
            self.add(len(source.output))
            self._slots = Slots(self._cache, len(source.output), source.output)

    def is_new(self, row: int) -> bool:  # noqa: ARG002 (they are all alike)
        """See `KVCache`: what is before the slots of continuations is read at once."""
        return self._slots is None

    def add(self, rows: int) -> None:
        """Take in so many rows, while nothing is held."""
        assert not any(self.lengths), "rows that share a past begin together"
        self.lengths += [0] * rows

    def hidden(
        self,
        model: DecoderModel,
        tokens: Tensor,
        rows: Sequence[int],
        positions: Sequence[int],  # noqa: ARG002
        lengths: Sequence[int],
    ) -> Tensor:
        """See `KVCache`; of all rows."""
        tokens = tokens.to(self._like.device)
        if self._slots is None:
            return self._begin(model, tokens, lengths)
        slots, n = self._slots, tokens.shape[1]
        self._settle()
        start = slots.position
        mask = slots.add(n)
        own = Scope(
            mask, caches=self._cache.own, start=start, branches=slots.width, query_positions=slots.query_positions(n),
            key_positions=slots.key_positions(n) if self._places_keys else None,
        )  # fmt: skip
        hidden = model.decode(tokens.reshape(slots.sentences, -1), own, self._seen_source())
        self._advance(n)
        self.moves_freely = False
        return hidden.view(len(rows), n, -1)

    def _begin(self, model: DecoderModel, tokens: Tensor, lengths: Sequence[int]) -> Tensor:
        """Read what the rows begin with; padding comes last, so that nothing that is real sees it."""
        assert isinstance(model, DecoderOnly)
        is_even = min(lengths) == tokens.shape[1]
        real = None if is_even else torch.tensor(lengths, device=self._like.device)
        self._cache = _new_cache(model)
        hidden = model.hidden(tokens, cache=self._cache, target_lengths=real)
        self._slots = Slots(self._cache, len(tokens), self._like, prefix=real)
        self.lengths = list(lengths)
        return hidden

    def _seen_source(self) -> Scope | None:
        source = self._source
        if source is None:
            return None
        mask = Mask()
        if source.lengths is not None:
            mask = Mask(bias=padding(source.lengths, source.output.shape[1])[:, None, None].to(source.output.dtype))
        return Scope(mask=mask, memory=source.output, caches=self._cache.memory)

    def reading(self, tokens: Tensor, rows: Sequence[int], positions: Sequence[int]) -> Reading:  # noqa: ARG002
        """See `KVCache`; of all rows."""
        assert self._slots is not None
        slots, n, source = self._slots, tokens.shape[1], self._source
        slots.take(n)
        for layer in self._cache.own:
            layer.grow(slots.width * n)
        self._advance(n)
        self.moves_freely = True
        starts = torch.tensor(positions)
        at = starts if n == 1 else (starts[:, None] + torch.arange(n)).flatten()
        places = slots.rows.repeat_interleave(slots.width * n)
        seen = slots.table() if n == 1 else slots.table().repeat_interleave(n, 0)
        if source is None:
            return Reading(tokens.flatten(), places, at, self._cache.own, slots=seen)
        sentences, longest, _ = source.output.shape
        real = torch.full((sentences,), longest) if source.lengths is None else source.lengths
        return Reading(
            tokens.flatten(), places, at, self._cache.own, slots=seen, memory=self._cache.memory, lengths=real
        )

    def _advance(self, n: int) -> None:
        self.lengths = [length + n for length in self.lengths]

    def select(self, rows: Sequence[int]) -> None:
        """Row i becomes what row `rows[i]` was; rows may be repeated or left out. Nothing is copied within a prompt."""
        assert self._slots is not None
        self.lengths = [self.lengths[row] for row in rows]
        index = torch.tensor(rows, dtype=torch.long, device=self._like.device)
        self._follow(self._slots.reorder(index, may_wait=self.moves_freely))

    def release(self, rows: Collection[int]) -> None:
        """Let rows go; the others keep their order."""
        self.select([row for row in range(len(self.lengths)) if row not in rows])

    def _settle(self) -> None:
        assert self._slots is not None
        self._follow(self._slots.settle())

    def _follow(self, moved: Tensor | None) -> None:
        """Have the sources follow to where `Slots.settle` has put their rows; the cache has moved their keys."""
        if moved is not None and self._source is not None:
            self._source.select(moved, layers=False)

    def truncate(self, lengths: Sequence[int]) -> None:
        """Hold at most so many positions of each row, after what the rows begin with."""
        held = min(length - own for length, own in zip(lengths, self.lengths, strict=True))
        if self._slots is None or held >= 0:
            return
        if self._slots.length + held < 0:
            self.forget(range(len(lengths)))
            return
        self._slots.truncate(self._slots.length + held)
        self._advance(held)

    def forget(self, rows: Collection[int]) -> None:  # noqa: ARG002 (they are all alike)
        """Hold nothing, so that all rows are read again, each in a place of its own."""
        assert self._source is None, "what an encoder has read is not read again"
        self._slots, self.lengths = None, [0] * len(self.lengths)


def _new_cache(model: DecoderModel) -> DecoderCache:
    cache = model.new_cache()
    assert isinstance(cache, DecoderCache)
    return cache


class Slots:
    """Gives the tokens of hypotheses their places in a cache, and says which of them each hypothesis sees.

    To the model a sentence is one row, and the hypotheses of a step are positions in it, beside each other. Each
    position has a slot in the cache that it never leaves: a hypothesis knows the slots of its own past, and a mask
    hides the others from it. So nothing is copied when hypotheses change places; slots that none remembers any more are
    given up now and then. What the cache holds to begin with is a prefix that all hypotheses of a sentence see.

    Rows of one sentence must stand together. Where they are not equally many for each (after `reorder`), sentences are
    repeated as often as needed.

    Attributes:
        width: rows that each sentence has.
        sentences: how many there are.
        rows: (sentences,) which row of the cache each has.

    Source: the mask is that of tree attention, Miao et al. 2023 (SpecInfer), section 4.
    """

    def __init__(self, cache: DecoderCache, sentences: int, like: Tensor, *, prefix: Tensor | None = None) -> None:
        """A row for each sentence, with nothing after its prefix.

        Args:
            cache: of the model.
            sentences: how many there are.
            like: a tensor of the model's type, on its device.
            prefix: (sentences,) how many positions of the prefix are real, if not all are in each.
        """
        self.width, self.sentences, self._cache_rows = 1, sentences, sentences
        self.rows = torch.arange(sentences, device=like.device)
        self._cache, self._dtype, self._device = cache, like.dtype, like.device
        self._prefix, self._real = cache.length, prefix
        self._past = torch.empty(sentences, 0, dtype=torch.long, device=like.device)  # (rows, length) slots
        self._forget_at = self._prefix + _FIRST_SLOTS

    @property
    def length(self) -> int:
        """Tokens in each row, after the prefix."""
        return self._past.shape[1]

    @property
    def position(self) -> int:
        """Where the next token of each row stands, unless the prefixes are of different lengths."""
        return self._prefix + self.length

    def take(self, n: int) -> Tensor:
        """Give the next `n` positions of each row their slots: (rows, length), those of each row's past before them."""
        used = self._cache.length
        fresh = torch.arange(used, used + self.width * n, device=self._device).view(self.width, n)
        self._past = torch.cat((self._past, fresh.repeat(self.sentences, 1)), dim=1)
        return self._past

    def add(self, n: int) -> Mask:
        """Give the next `n` positions of each row their slots, and say which slots each of them sees."""
        start, slots = self.length, self._cache.length + self.width * n
        past = self.take(n)
        if slots == self.position and self._real is None:
            return Mask.causal()
        seen = past[:, None, :].expand(-1, n, -1)  # (rows, n, length)
        if n > 1:  # its own slot stands in for those of a position's future
            future = torch.ones(n, self.length, dtype=torch.bool, device=self._device).triu(start + 1)
            seen = torch.where(future, past[:, start:, None], seen)
        hidden = torch.full((self.sentences, self.width * n, slots), -torch.inf, device=self._device)
        hidden[:, :, : self._prefix] = 0.0 if self._real is None else padding(self._real, self._prefix)[:, None]
        seen = seen.reshape(self.sentences, self.width * n, self.length)
        return Mask(bias=hidden.scatter_(2, seen, 0.0).to(self._dtype)[:, None])

    def query_positions(self, n: int) -> Tensor | None:
        """(sentences, rows of each · n) where the last `n` positions of each row stand; None if all rows are alike."""
        if self._real is None:
            return None
        places = torch.arange(self.length - n, self.length, device=self._device).repeat(self.width)
        return self._real[:, None] + places

    def key_positions(self, n: int) -> Tensor:
        """(sentences, slots) where what is in each slot stands, the last `n` positions of each row among them.

        Hypotheses that share a slot have it at the same position; a slot that none remembers counts as the first.
        """
        past = self._past.view(self.sentences, -1)  # (sentences, rows of each · length)
        first = self._prefix if self._real is None else self._real[:, None]
        places = first + torch.arange(self.length, device=self._device).repeat(self.width)
        found = past.new_zeros(self.sentences, self._cache.length + self.width * n)
        found[:, : self._prefix] = torch.arange(self._prefix, device=self._device)
        return found.scatter_(1, past, places.expand_as(past))

    def reorder(self, rows: Tensor, *, may_wait: bool = False) -> Tensor | None:
        """Row i becomes what row `rows[i]` was.

        Args:
            rows: (new rows,).
            may_wait: sentences may stay where they are in the cache, see `rows`, as long as each is there once.

        Returns:
            What `settle` does.
        """
        self._past = self._past.index_select(0, rows)
        sentences = rows // self.width
        runs = sentences.unique_consecutive(return_counts=True)[1]
        self.width = math.gcd(*runs.tolist())
        kept = sentences[:: self.width]
        self.sentences, self.rows = len(kept), self.rows.index_select(0, kept)
        self._real = None if self._real is None else self._real.index_select(0, kept)
        is_full = self._cache.length + self.width > self._forget_at
        if may_wait and not is_full and len(self.rows.unique()) == self.sentences:
            return None
        moved = self.settle()
        if is_full:
            self._forget()
        return moved

    def settle(self) -> Tensor | None:
        """Move the sentences to rows of the cache in their order: (sentences,) where each one was, or None if there."""
        rows, there = self.rows, torch.arange(self.sentences, device=self._device)
        if self.sentences == self._cache_rows and torch.equal(rows, there):
            return None
        self._cache.reorder(rows)
        self.rows, self._cache_rows = there, self.sentences
        return rows

    def _forget(self) -> None:
        """Give up the slots that no row remembers.

        A useless slot costs its share of every later step, and giving up costs as much as there are slots; both are
        least when the steps between grow with the root of the slots.
        """
        past = self._past.view(self.sentences, -1)  # (sentences, rows of each · length)
        used = past.new_zeros(len(past), self._cache.length).scatter_(1, past, 1)
        used[:, : self._prefix] = 1
        places = used.cumsum(1) - 1
        most = int(places[:, -1].max()) + 1
        self._cache.select(used.argsort(dim=1, descending=True, stable=True)[:, :most])
        self._past = places.gather(1, past).view(self._past.shape)
        self._forget_at = most + self.width * (1 + math.isqrt(most))

    def table(self) -> Tensor:
        """(rows, longest) the slot of each position of each row, those of its prefix included."""
        if not self._prefix:
            return self._past
        table = torch.arange(self._prefix, device=self._device).repeat(len(self._past), 1)
        table = torch.cat((table, torch.zeros_like(self._past)), dim=1)
        if self._real is None:
            table[:, self._prefix :] = self._past
            return table
        first = self._real.repeat_interleave(self.width)[:, None]
        return table.scatter_(1, first + torch.arange(self.length, device=self._device), self._past)

    def truncate(self, length: int) -> None:
        """Take back all tokens after the prefix but the first `length`."""
        self._past = self._past[:, :length]


class RowStates(RecurrentCache):
    """The states of recurrent layers, each row after another number of positions."""

    def put(self, rows: Tensor, read: RecurrentCache) -> None:
        """Some rows begin with the states of (rows,) others."""
        before: Sequence[State | None] = self.states or [None] * len(read.states)
        self.states = [_placed(old, new, rows) for old, new in zip(before, read.states, strict=True)]
        self.length = max(self.length, read.length)

    def copy(self, rows: Tensor, others: Tensor) -> None:
        """Some rows become what others are."""
        found = RecurrentCache()
        found.advance(self.states, self.length)
        found.reorder(others)
        self.put(rows, found)


def _placed(states: State | None, fresh: State, rows: Tensor) -> State:
    """States, (1, rows, width), in which some rows are new; there may be more of them than before."""
    if isinstance(fresh, tuple):
        pairs = zip((None, None) if states is None else states, fresh, strict=True)
        hidden, cells = starmap(lambda old, new: _placed(old, new, rows), pairs)
        assert isinstance(hidden, Tensor)
        assert isinstance(cells, Tensor)
        return hidden, cells
    assert not isinstance(states, tuple)
    n_rows = int(rows.max()) + 1
    known = 0 if states is None else states.shape[1]
    grown = fresh.new_zeros(1, max(n_rows, known), fresh.shape[2])
    if states is not None:
        grown[:, :known] = states
    grown[:, rows] = fresh
    return grown
