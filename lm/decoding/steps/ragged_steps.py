"""Steps of a decoder-only model whose rows are of different lengths: they come, grow and go each on its own."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lm.decoding.steps.static_step import static_logits
from lm.decoding.steps.steps import window_start
from lm.engine.compiled.reading import Reading
from lm.engine.selection import native_decoder
from lm.model.cache import DecoderCache, RecurrentCache
from lm.model.ragged import RaggedCache, RaggedStates
from lm.model.transformer import DecoderOnly

_TOKENS_AT_ONCE = 4096
"""Tokens, padding included, that are read together."""

Window = tuple[int, ...]
"""The ids that a model sees of a row."""


@dataclass(slots=True, eq=False)
class _Row:
    """A sequence that grows.

    Attributes:
        tokens: of it so far.
        place: which row of the cache remembers it.
        start: of the window that the cache holds.
    """

    tokens: list[int]
    place: int
    start: int = 0

    @property
    def window(self) -> Window:
        """What the model sees of it."""
        return tuple(self.tokens[self.start :])


class RaggedSteps:
    """Steps of rows that are taken in and let go at any time; what each is fed decides its logits, and nothing else.

    The cache is written in place: a row that goes leaves its place to the next one that comes. A sequence that outgrows
    the context goes on as in `DecoderSteps`: its last half is read again, as if it came anew. Prompts of like length
    are read together, equal ones and a prefix that is shared (`share`) once.

    Without a cache, which is the reference, all is read again each time; so it is for layers with compressed keys,
    which cover several positions of a row and other ones of the next.

    Source: Yu et al. 2022 (Orca), section 3.2 (iteration-level scheduling).
    """

    def __init__(self, model: DecoderOnly, *, cached: bool = True) -> None:
        """Of a model in eval mode, with no rows yet."""
        self._model, self._context = model, model.config.context_length
        self._like = next(model.parameters())  # of the type that the model computes in
        self._rows: list[_Row] = []
        self._free: list[int] = []  # places of the cache that are nobody's, the last one to be given away first
        self._places = 0
        self._prefix: Window = ()
        self._of_prefix: DecoderCache | RecurrentCache | None = None
        self._cache = self._new_cache() if cached and model.config.attention != "compressed" else None

    def _new_cache(self) -> RaggedCache | RaggedStates:
        if self._model.config.is_recurrent:
            return RaggedStates()
        return RaggedCache(self._model.config.n_layers, self._context)

    @torch.inference_mode()
    def share(self, prefix: Sequence[int]) -> None:
        """Read what many of the rows to come begin with; those that do go on from there."""
        if self._cache is None or not prefix or len(prefix) >= self._context:
            self._prefix, self._of_prefix = (), None
        elif self._prefix != tuple(prefix):
            self._prefix, self._of_prefix = tuple(prefix), self._model.new_cache()
            self._model.hidden(self._ids([self._prefix]), cache=self._of_prefix)

    @torch.inference_mode()
    def join(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        """Take in sequences of at least one id each, as rows after those that are there.

        Returns:
            (sequences, vocabulary) float32 logits of the tokens that follow.
        """
        missing = len(sequences) - len(self._free)
        if missing > 0:
            self._free = [*range(self._places + missing - 1, self._places - 1, -1), *self._free]
            self._places += missing
        rows = [_Row(list(sequence), self._free.pop()) for sequence in sequences]
        self._rows += rows
        return self._read(rows)

    @torch.inference_mode()
    def feed(self, tokens: Tensor, *, last_only: bool = False) -> Tensor:  # noqa: ARG002 (there is one of each)
        """Append (rows, 1) tokens; see `Steps.feed`."""
        for row, token in zip(self._rows, tokens[:, 0].tolist(), strict=True):
            row.tokens.append(token)
        going_on = [row for row in self._rows if self._goes_on(row)]
        if len(going_on) == len(self._rows):
            return self._step(going_on)[:, None]
        anew = [row for row in self._rows if not self._goes_on(row)]
        parts = ([self._step(going_on)] if going_on else []) + [self._read(anew)]
        number = {id(row): place for place, row in enumerate(going_on + anew)}
        return torch.cat(parts)[[number[id(row)] for row in self._rows]][:, None]

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was; rows may be left out, but not repeated."""
        kept = [self._rows[number] for number in rows.tolist()]
        places = {row.place for row in kept}
        self._free += [row.place for row in self._rows if row.place not in places]
        self._rows = kept

    def _goes_on(self, row: _Row) -> bool:
        """Whether the cache holds all of a row's window but the last token."""
        return self._cache is not None and window_start(len(row.tokens), self._context) == row.start

    def _step(self, rows: Sequence[_Row]) -> Tensor:
        """(rows, vocabulary) logits after the last token of each, which no cache has yet."""
        assert self._cache is not None
        if 2 * len(rows) <= self._places and len(rows) == len(self._rows):
            self._close_up()
        last = {row.place: len(row.tokens) - 1 - row.start for row in rows}
        least = min(last.values())
        tokens = torch.zeros(self._places, 1, dtype=torch.long)
        places = torch.tensor(list(last))
        tokens[places, 0] = torch.tensor([row.tokens[-1] for row in rows])
        positions = [last.get(place, least) for place in range(self._places)]
        native = native_decoder(self._model, tokens=len(rows))
        if native is not None and isinstance(self._cache, RaggedCache):
            self._cache.make_room(positions)
            where = torch.tensor(list(last.values()))
            return native.logits(Reading(tokens[places, 0], places, where, self._cache.own))
        if isinstance(self._cache, RaggedCache):
            logits = static_logits(self._model, tokens[:, 0], torch.tensor(positions), self._cache)
            if logits is not None:
                self._cache.make_room(positions)
                return logits.index_select(0, places.to(logits.device))
        scope = self._cache.scope(positions, self._like, places_keys=self._model.config.places_keys)
        hidden = self._model.decode(tokens.to(self._like.device), scope)[:, -1]
        return self._model.logits(hidden.index_select(0, places.to(hidden.device))).float()

    def _close_up(self) -> None:
        """Give up the places that are nobody's."""
        assert self._cache is not None
        self._cache.reorder(torch.tensor([row.place for row in self._rows], device=self._like.device))
        self._free, self._places = [], len(self._rows)
        for place, row in enumerate(self._rows):
            row.place = place

    def _read(self, rows: Sequence[_Row]) -> Tensor:
        """(rows, vocabulary) logits after the last token of each, whose windows are read from their beginning."""
        readers: dict[Window, list[int]] = {}
        for number, row in enumerate(rows):
            row.start = window_start(len(row.tokens), self._context)
            readers.setdefault(row.window, []).append(number)
        logits: dict[int, Tensor] = {}
        for group in self._groups(list(readers)):
            found, cache = self._read_together(group)
            which = [(number, place) for place, window in enumerate(group) for number in readers[window]]
            for number, place in which:
                logits[number] = found[place]
            if self._cache is not None:
                places = torch.tensor([rows[number].place for number, _ in which], device=self._like.device)
                self._cache.put(places, cache, torch.tensor([place for _, place in which], device=self._like.device))
        return torch.stack([logits[number] for number in range(len(rows))])

    def _groups(self, windows: Sequence[Window]) -> Iterator[list[Window]]:
        """Windows to be read together: of like length, for recurrent layers of the same."""
        group: list[Window] = []
        for window in sorted(windows, key=lambda window: (self._shared(window), len(window))):
            is_full = (len(group) + 1) * len(window) > _TOKENS_AT_ONCE
            is_other = group and self._shared(window) != self._shared(group[0])
            if group and (is_full or is_other or (self._model.config.is_recurrent and len(window) != len(group[0]))):
                yield group
                group = []
            group.append(window)
        yield group

    def _shared(self, window: Window) -> int:
        """How many tokens at its beginning are the prefix that was read already."""
        length = len(self._prefix)
        return length if len(window) > length and window[:length] == self._prefix else 0

    def _read_together(self, windows: Sequence[Window]) -> tuple[Tensor, DecoderCache | RecurrentCache]:
        """(windows, vocabulary) logits of what follows, and a cache with the windows in it."""
        shared = self._shared(windows[0])
        cache = (copy.deepcopy(self._of_prefix) if shared else None) or self._model.new_cache()
        cache.reorder(torch.zeros(len(windows), dtype=torch.long, device=self._like.device))
        lengths = torch.tensor([len(window) - shared for window in windows], device=self._like.device)
        ids = self._ids([window[shared:] for window in windows])
        hidden = self._model.hidden(  # padding comes last, so that nothing that is real sees it
            ids, cache=None if self._cache is None else cache, target_lengths=lengths
        )
        last = hidden[torch.arange(len(windows), device=hidden.device), lengths - 1]
        return self._model.logits(last).float(), cache

    def _ids(self, windows: Sequence[Window]) -> Tensor:
        """(windows, longest) ids, padded on the right."""
        longest = max(map(len, windows))
        return torch.tensor([[*window, *[0] * (longest - len(window))] for window in windows], device=self._like.device)
