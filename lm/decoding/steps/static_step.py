"""The next token of each row in tensors that stay where they are, so that a GPU can be given all of a step at once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
import torch.nn.functional as F
from torch import Tensor

from lm.config.model import ModelConfig
from lm.decoding.steps.cuda_graph import CudaRecorder, Work
from lm.model.cache import DecoderCache, KeyValueCache
from lm.model.positions import PositionTable
from lm.model.ragged import RaggedKeyValueCache, ragged_scope
from lm.model.transformer import DecoderOnly

_MOST_ROWS = 64
"""More rows keep a GPU busy, however they are launched, and each number of rows is recorded anew."""
_LEAST_KEYS, _LEAST_ROOM = 256, 1024
"""Positions that attention reads, and that there is room for, at least: with fewer, steps are recorded more often."""

RECORDERS: Mapping[str, Callable[[torch.device], Callable[[Work], Work]]] = {"cuda": CudaRecorder}
"""What makes of work something that repeats it, by the type of the device; on others steps are not recorded."""
_steps: WeakKeyDictionary[DecoderOnly, StaticStep | None] = WeakKeyDictionary()


def is_static(config: ModelConfig) -> bool:
    """Whether a model's next step has the same shapes whatever the tokens: experts take as many as are sent to them."""
    return not (config.is_recurrent or config.experts) and config.attention in {"full", "window"}


def static_logits(model: DecoderOnly, tokens: Tensor, positions: Tensor, cache: DecoderCache) -> Tensor | None:
    """Logits after one more token of each row, whose keys and values are in the cache then; it is not counted there.

    Args:
        model: in eval mode.
        tokens: (rows,) ids, on any device.
        positions: (rows,) where they stand, on the CPU.
        cache: what the rows remember; on the device of the model.

    Returns:
        (rows, vocabulary) float32; None where the step is not to be recorded, or cannot be, and nothing was done.
    """
    step = _step_of(model, cache, len(tokens))
    try:
        return None if step is None else step.logits(model, tokens, positions, cache)
    except RuntimeError as error:  # torch's, of the device; the cache is as it was, but for where it lies
        reason = str(error).partition("\n")[0]
        logging.getLogger(__name__).warning("this device records no steps, which go on one by one: %s", reason)
        _steps[model] = None
        return None


def _step_of(model: DecoderOnly, cache: DecoderCache, rows: int) -> StaticStep | None:
    """The static step of a model that was loaded to be used, if this cache may have its buffers."""
    key, _ = cache.own[0].buffers()
    device = key.device.type
    if device not in RECORDERS or rows > _MOST_ROWS or model.training or torch.is_autocast_enabled(device):
        return None
    first = next(model.parameters())
    if first.requires_grad or not is_static(model.config):
        return None
    if model not in _steps:
        _steps[model] = StaticStep(model)
    found = _steps[model]
    if found is not None and not found.has_weights_of(model):
        found = _steps[model] = StaticStep(model)
    return found if found is not None and found.lends_to(cache) else None


class StaticStep:
    """A step of one model, recorded for each number of rows and of positions that attention reads, in powers of two.

    Keys and values lie in buffers that stay where they are: a cache goes on in their first rows, and has them for
    itself as long as it lives. A token is written where a tensor says, and a mask hides what comes after it.

    There is room for less than twice the rows and twice the positions that any cache needed, or for 1,024 positions. It
    is kept for the next cache, and given up with the model.
    """

    def __init__(self, model: DecoderOnly) -> None:
        """With nothing recorded, and no room yet; of a model whose weights stay where they are."""
        self._first = next(model.parameters()).detach()  # kept, so that nothing else comes to lie there
        self._recorded: dict[tuple[int, int], Work] = {}
        self._read: list[Tensor] = []  # what recorded steps read, besides the weights and what is here
        self._buffers: list[tuple[Tensor, Tensor]] = []
        self._tokens = self._positions = torch.empty(0)
        self._owner: ReferenceType[DecoderCache] | None = None
        self._lock = threading.Lock()

    def has_weights_of(self, model: DecoderOnly) -> bool:
        """Whether a model's weights are where they were: moving or converting a model puts all of them elsewhere."""
        return next(model.parameters()).data_ptr() == self._first.data_ptr()

    def lends_to(self, cache: DecoderCache) -> bool:
        """Whether a cache may have the buffers from now on: no other that is alive has them."""
        with self._lock:
            owner = None if self._owner is None else self._owner()
            if owner is None:
                self._owner = ref(cache)
            return owner is None or owner is cache

    def logits(self, model: DecoderOnly, tokens: Tensor, positions: Tensor, cache: DecoderCache) -> Tensor:
        """See `static_logits`; RuntimeError where the step cannot be recorded."""
        rows, end, most = len(tokens), int(positions.max()) + 1, model.config.context_length
        self._take_in(cache.own, rows, end, most)
        shape = (_power(rows), min(most, _power(end, least=_LEAST_KEYS)))
        self._tokens[:rows, 0] = tokens
        self._positions[: shape[0]] = F.pad(positions, (0, shape[0] - rows))  # where nobody is, the first
        if shape not in self._recorded:
            self._recorded[shape] = self._record(partial(self._step, model, *shape))
            tables = (module for module in model.modules() if isinstance(module, PositionTable))
            self._read += [table.rows(0, shape[1], self._tokens.device) for table in tables]
        return self._recorded[shape]()[:rows]

    def _step(self, model: DecoderOnly, rows: int, keys: int) -> Tensor:
        """(rows, vocabulary) logits after the next token of each row, computed by the model itself."""
        positions, config = self._positions[:rows], model.config
        buffers = [(key[:rows, :, :keys], value[:rows, :, :keys]) for key, value in self._buffers]
        layers = [RaggedKeyValueCache.within(key, value, positions) for key, value in buffers]
        scope = ragged_scope(layers, positions, keys, self._first.dtype, places_keys=config.places_keys)
        hidden = model.decode(self._tokens[:rows], scope)
        return model.logits(hidden[:, -1]).float()

    def _take_in(self, layers: Sequence[KeyValueCache], rows: int, end: int, most: int) -> None:
        """Have the keys and values of a cache in the buffers, with room for its next positions."""
        has_rows, has_length = (len(self._tokens), self._buffers[0][0].shape[2]) if self._buffers else (0, 0)
        if rows > has_rows or end > has_length:
            length = min(most, _power(end, least=_LEAST_ROOM))
            self._make_room(layers, max(has_rows, _power(rows)), max(has_length, length))
        key, _ = layers[0].buffers()
        if key.data_ptr() != self._buffers[0][0].data_ptr():
            for layer, (key, value) in zip(layers, self._buffers, strict=True):
                layer.move(key[:rows], value[:rows])

    def _make_room(self, layers: Sequence[KeyValueCache], rows: int, length: int) -> None:
        """Other buffers, for so many rows and positions; what was recorded with those from before is given up."""
        self._recorded, self._read, self._buffers = {}, [], []
        self._record = RECORDERS[self._first.device.type](self._first.device)
        self._tokens = torch.zeros(rows, 1, dtype=torch.long, device=self._first.device)
        self._positions = torch.zeros_like(self._tokens[:, 0])
        for layer in layers:
            key, _ = layer.buffers()
            room = key.new_zeros(2, rows, key.shape[1], length, key.shape[3])
            self._buffers.append((room[0], room[1]))


def _power(number: int, *, least: int = 1) -> int:
    """The least power of two that is as large as both."""
    return 1 << (max(number, least) - 1).bit_length()
