"""Decode steps on a GPU that are recorded once as CUDA graphs, and from then on launched as a whole."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
import torch.nn.functional as F
from torch import Tensor

from lm.engine.engine import EngineOutput, KVCache, OutputSpec
from lm.engine.pytorch import TorchEngine
from lm.engine.row_cache import RowCache, RowLayerCache, row_attention_inputs
from lm.model.kv_cache import LayerKVCache
from lm.model.positions import PositionTable
from lm.model.transformer import DecoderOnly

Computation = Callable[[], Tensor]

_MIN_KEYS, _MIN_BUFFER_LENGTH = 256, 1024
"""Positions that attention reads, and that there is room for, at least: with fewer, steps are recorded more often."""

_WARM_UPS = 2
"""Runs before the recorded one, in which libraries choose their kernels and take what memory they keep."""


class CudaGraphRecorder:
    """Records what some work launches on a GPU, so that it is launched again: at the same addresses, without Python.

    Nothing that Python does is done again, so the work must ask no tensor for its numbers, and copy nothing to the GPU;
    and what it reads but does not make must be kept alive, and stay where it is. What it makes lies in memory that all
    works of one recorder share: they are never at work at the same time.

    Source: Nguyen et al. 2021 (Accelerating PyTorch with CUDA Graphs).
    """

    def __init__(self, device: torch.device) -> None:
        """Of work on one device, with nothing recorded."""
        self._stream, self._pool = _recording_stream(device), torch.cuda.graph_pool_handle()

    def __call__(self, work: Computation) -> Computation:
        """Run some work a few times, and record it.

        Args:
            work: gives the same numbers whenever it finds the same ones.

        Returns:
            What gives the numbers that the work would give; a copy of them, which later calls leave alone.

        Raises:
            RuntimeError: the work cannot be recorded, or there is too little memory.
        """
        graph, caller = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(caller)
        with torch.cuda.stream(self._stream):  # goes back to the caller's stream, also where recording does not
            for _ in range(_WARM_UPS):
                work()
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                output = work()
        caller.wait_stream(self._stream)

        def repeat() -> Tensor:
            graph.replay()
            return output.clone()

        return repeat


@cache
def _recording_stream(device: torch.device) -> torch.cuda.Stream:
    """The one for recording: libraries keep memory for each that they are used on."""
    return torch.cuda.Stream(device)


RECORDERS: Mapping[str, Callable[[torch.device], Callable[[Computation], Computation]]] = {"cuda": CudaGraphRecorder}
"""What makes of work something that repeats it, by the type of the device; on others steps are not recorded."""
_static_steps: WeakKeyDictionary[DecoderOnly, StaticDecodeStep] = WeakKeyDictionary()


class CudaGraphEngine:
    """A model's decode step for one token a row, recorded; all else, and all other sessions, run in PyTorch."""

    name = "CUDA graph"

    def __init__(self, model: DecoderOnly) -> None:
        """Of a model in eval mode, of which `lm.engine.selection.CUDA_GRAPH_SUPPORT` supports all settings."""
        self._pytorch = TorchEngine(model)
        self._model = model
        if model not in _static_steps or not _static_steps[model].has_weights_of(model):
            _static_steps[model] = StaticDecodeStep(model)
        self._step = _static_steps[model]

    def forward(
        self,
        tokens: Tensor,
        rows: Sequence[int],
        positions: Sequence[int],
        cache: KVCache,
        output_spec: OutputSpec,
        *,
        lengths: Sequence[int] | None = None,
    ) -> EngineOutput:
        """See `Engine`; of rows that are not new to the cache."""
        if isinstance(cache, RowCache) and tokens.shape[1] == 1 and self._step.acquire_for(cache):
            logits = self._replay(tokens, rows, positions, cache)
            if logits is not None:
                return EngineOutput(logits=logits[:, None] if output_spec.logits_to_keep else None)
        return self._pytorch.forward(tokens, rows, positions, cache, output_spec, lengths=lengths)

    def _replay(self, tokens: Tensor, rows: Sequence[int], positions: Sequence[int], cache: RowCache) -> Tensor | None:
        """(rows, vocabulary) logits; None where the step cannot be recorded, and nothing was done."""
        batch, starts = cache.scatter_to_buffer(tokens, rows, positions)
        try:
            logits = self._step.logits(self._model, batch[:, 0], torch.tensor(starts), cache)
        except RuntimeError as error:  # torch's, of the device; the cache is as it was, but for where it lies
            reason = str(error).partition("\n")[0]
            logging.getLogger(__name__).warning("CUDA graphs can't be recorded here, so steps run without: %s", reason)
            self._step.disable()
            return None
        cache.reserve(max(starts) + 1)
        cache.advance(rows, 1)
        return logits.index_select(0, torch.tensor(cache.buffer_rows_of(rows), device=logits.device))


class StaticDecodeStep:
    """A step of one model, recorded for each number of rows and of positions that attention reads, in powers of two.

    Keys and values lie in buffers that stay where they are: a cache goes on in their first rows, and has them for
    itself as long as it lives. A token is written where a tensor says, and a mask hides what comes after it.

    There is room for less than twice the rows and twice the positions that any cache needed, or for 1,024 positions. It
    is kept for the next cache, and given up with the model.
    """

    def __init__(self, model: DecoderOnly) -> None:
        """With nothing recorded, and no room yet; of a model whose weights stay where they are."""
        self._first_parameter = next(model.parameters()).detach()  # kept, so that nothing else comes to lie there
        self._recorded: dict[tuple[int, int], Computation] = {}
        self._kept_alive: list[Tensor] = []  # what recorded steps read, besides the weights and what is here
        self._buffers: list[tuple[Tensor, Tensor]] = []
        self._tokens = self._positions = torch.empty(0)
        self._owner: ReferenceType[RowCache] | None = None
        self._lock, self._is_recordable = threading.Lock(), True

    def has_weights_of(self, model: DecoderOnly) -> bool:
        """Whether a model's weights are where they were: moving or converting a model puts all of them elsewhere."""
        return next(model.parameters()).data_ptr() == self._first_parameter.data_ptr()

    def disable(self) -> None:
        """Lend to no cache any more: the device records nothing."""
        self._is_recordable = False

    def acquire_for(self, cache: RowCache) -> bool:
        """Whether a cache may have the buffers from now on: no other that is alive has them."""
        with self._lock:
            if not self._is_recordable:
                return False
            owner = None if self._owner is None else self._owner()
            if owner is None:
                self._owner = ref(cache)
            return owner is None or owner is cache

    def logits(self, model: DecoderOnly, tokens: Tensor, positions: Tensor, cache: RowCache) -> Tensor:
        """Logits after one more token of each place; its keys and values are in the cache then, but not counted.

        Args:
            model: in eval mode.
            tokens: (places,) ids, on any device.
            positions: (places,) where they stand, on the CPU.
            cache: what the rows remember; on the device of the model.

        Returns:
            (places, vocabulary) float32.

        Raises:
            RuntimeError: the step cannot be recorded; nothing was done.
        """
        rows, end, most = len(tokens), int(positions.max()) + 1, model.config.context_length
        self._adopt(cache.layers, rows, end, most)
        shape = (_next_power_of_two(rows), min(most, _next_power_of_two(end, least=_MIN_KEYS)))
        self._tokens[:rows, 0] = tokens
        self._positions[: shape[0]] = F.pad(positions, (0, shape[0] - rows))  # where nobody is, the first
        if shape not in self._recorded:
            self._recorded[shape] = self._record(partial(self._step, model, *shape))
            tables = (module for module in model.modules() if isinstance(module, PositionTable))
            self._kept_alive += [table.rows(0, shape[1], self._tokens.device) for table in tables]
        return self._recorded[shape]()[:rows]

    def _step(self, model: DecoderOnly, rows: int, keys: int) -> Tensor:
        """(rows, vocabulary) logits after the next token of each row, computed by the model itself."""
        positions, config = self._positions[:rows], model.config
        buffers = [(key[:rows, :, :keys], value[:rows, :, :keys]) for key, value in self._buffers]
        layers = [RowLayerCache.from_buffers(key, value, positions) for key, value in buffers]
        inputs = row_attention_inputs(
            layers, positions, 1, keys, self._first_parameter.dtype, needs_key_positions=config.places_keys
        )
        hidden = model.decode(self._tokens[:rows], inputs)
        return model.logits(hidden[:, -1]).float()

    def _adopt(self, layers: Sequence[LayerKVCache], rows: int, end: int, most: int) -> None:
        """Have the keys and values of a cache in the buffers, with room for its next positions."""
        has_rows, has_length = (len(self._tokens), self._buffers[0][0].shape[2]) if self._buffers else (0, 0)
        if rows > has_rows or end > has_length:
            length = min(most, _next_power_of_two(end, least=_MIN_BUFFER_LENGTH))
            self._reallocate(layers, max(has_rows, _next_power_of_two(rows)), max(has_length, length))
        key, _ = layers[0].buffers()
        if key.data_ptr() != self._buffers[0][0].data_ptr():
            for layer, (key, value) in zip(layers, self._buffers, strict=True):
                layer.move_to(key[:rows], value[:rows])

    def _reallocate(self, layers: Sequence[LayerKVCache], rows: int, length: int) -> None:
        """Other buffers, for so many rows and positions; what was recorded with those from before is given up."""
        self._recorded, self._kept_alive, self._buffers = {}, [], []
        self._record = RECORDERS[self._first_parameter.device.type](self._first_parameter.device)
        self._tokens = torch.zeros(rows, 1, dtype=torch.long, device=self._first_parameter.device)
        self._positions = torch.zeros_like(self._tokens[:, 0])
        for layer in layers:
            key, _ = layer.buffers()
            room = key.new_zeros(2, rows, key.shape[1], length, key.shape[3])
            self._buffers.append((room[0], room[1]))


def _next_power_of_two(number: int, *, least: int = 1) -> int:
    """The least power of two that is as large as both."""
    return 1 << (max(number, least) - 1).bit_length()
