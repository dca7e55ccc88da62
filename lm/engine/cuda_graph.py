"""CUDA graphs: decode steps that are recorded once and then launched as a whole."""

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
from lm.engine.pytorch import SequenceKVCache, SequenceLayerKVCache, TorchEngine, row_attention_inputs
from lm.model.kv_cache import LayerKVCache
from lm.model.positions import PositionTable
from lm.model.transformer import DecoderOnly

Computation = Callable[[], Tensor]

_MIN_KEYS, _MIN_BUFFER_LENGTH = 256, 1024
"""The least number of positions that attention reads, and of the buffers: with fewer, steps are recorded more often."""

_WARM_UPS = 2
"""Warm-up runs before recording, in which libraries choose kernels and allocate their workspace."""


class CudaGraphRecorder:
    """Records the kernels that a computation launches, to be launched again at the same addresses, without Python.

    Python code does not run again, so the computation must not read values from tensors or copy to the GPU; its inputs
    must be kept alive and stay in place. The outputs of one recorder's graphs share memory: they never run at the same
    time.

    Source: Nguyen et al. 2021 (Accelerating PyTorch with CUDA Graphs).
    """

    def __init__(self, device: torch.device) -> None:
        self._stream, self._pool = _recording_stream(device), torch.cuda.graph_pool_handle()

    def __call__(self, work: Computation) -> Computation:
        """Warm up and record a computation.

        Args:
            work: a deterministic function of the tensors that it reads.

        Returns:
            A function that replays it and returns a copy of the output.

        Raises:
            RuntimeError: the computation cannot be recorded, or memory is short.
        """
        graph, caller = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._stream.device)
        generator = torch.cuda.default_generators[caller.device_index]
        random_state = generator.clone_state()
        self._stream.wait_stream(caller)
        try:
            with torch.cuda.stream(self._stream):  # restores the caller's stream, even if recording fails
                for _ in range(_WARM_UPS):
                    work()
                with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                    output = work()
        except RuntimeError:
            generator.graphsafe_set_state(random_state)  # torch leaves it as during recording, of no use outside
            raise
        caller.wait_stream(self._stream)

        def repeat() -> Tensor:
            graph.replay()
            return output.clone()

        return repeat


@cache
def _recording_stream(device: torch.device) -> torch.cuda.Stream:
    """The one stream for recording: libraries allocate workspace per stream."""
    return torch.cuda.Stream(device)


RECORDERS: Mapping[str, Callable[[torch.device], Callable[[Computation], Computation]]] = {"cuda": CudaGraphRecorder}
"""The recorder of each device type; on others steps are not recorded."""
_static_steps: WeakKeyDictionary[DecoderOnly, StaticDecodeStep] = WeakKeyDictionary()


class CudaGraphEngine:
    """Replays decode steps of one token per row; everything else, and all other sessions, run in PyTorch."""

    name = "CUDA graph"

    def __init__(self, model: DecoderOnly) -> None:
        """Wrap a model in eval mode whose settings `lm.engine.selection.CUDA_GRAPH_SUPPORT` lists."""
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
        if isinstance(cache, SequenceKVCache) and tokens.shape[1] == 1 and self._step.acquire_for(cache):
            logits = self._replay(tokens, rows, positions, cache)
            if logits is not None:
                return EngineOutput(logits=logits[:, None] if output_spec.logits_to_keep else None)
        return self._pytorch.forward(tokens, rows, positions, cache, output_spec, lengths=lengths)

    def _replay(
        self, tokens: Tensor, rows: Sequence[int], positions: Sequence[int], cache: SequenceKVCache
    ) -> Tensor | None:
        """(rows, vocabulary) logits; None if the step cannot be recorded, and nothing was done."""
        batch, starts = cache.pad_to_buffer_rows(tokens, rows, positions)
        try:
            logits = self._step.logits(self._model, batch[:, 0], torch.tensor(starts), cache)
        except RuntimeError as error:  # of the device; the cache is unchanged, except for its address
            reason = str(error).partition("\n")[0]
            logging.getLogger(__name__).warning(
                "CUDA graphs can't be recorded here, so decode steps run without them: %s", reason
            )
            self._step.disable()
            return None
        cache.reserve(max(starts) + 1)
        cache.advance(rows, 1)
        return logits.index_select(0, torch.tensor(cache.buffer_rows_of(rows), device=logits.device))


class StaticDecodeStep:
    """The decode step of one model, recorded for each number of rows and of positions, in powers of two.

    Keys and values lie in static buffers, which one cache at a time uses. A token is written where a tensor says, and a
    mask hides the positions after it.

    The buffers hold less than twice the rows and positions that any cache needed, or 1,024 positions. They are kept for
    the next cache, and freed with the model.
    """

    def __init__(self, model: DecoderOnly) -> None:
        """Create a step without recordings and buffers, for a model whose weights don't move."""
        self._first_parameter = next(model.parameters()).detach()  # kept alive, so that its address is not reused
        self._recorded: dict[tuple[int, int], Computation] = {}
        self._kept_alive: list[Tensor] = []  # further tensors that recorded steps read
        self._buffers: list[tuple[Tensor, Tensor]] = []
        self._tokens = self._positions = torch.empty(0)
        self._owner: ReferenceType[SequenceKVCache] | None = None
        self._lock, self._is_recordable = threading.Lock(), True

    def has_weights_of(self, model: DecoderOnly) -> bool:
        """Whether a model's weights are where they were; moving or converting a model moves them."""
        return next(model.parameters()).data_ptr() == self._first_parameter.data_ptr()

    def disable(self) -> None:
        """Refuse all caches from now on: the device cannot record."""
        self._is_recordable = False

    def acquire_for(self, cache: SequenceKVCache) -> bool:
        """Give the buffers to a cache, unless another live cache has them; return whether it has them."""
        with self._lock:
            if not self._is_recordable:
                return False
            owner = None if self._owner is None else self._owner()
            if owner is None:
                self._owner = ref(cache)
            return owner is None or owner is cache

    def logits(self, model: DecoderOnly, tokens: Tensor, positions: Tensor, cache: SequenceKVCache) -> Tensor:
        """Compute the logits after one more token of each row; keys and values are written, but not counted.

        Args:
            tokens: (rows,) IDs, on any device.
            positions: (rows,) their positions, on the CPU.
            cache: of the rows, on the device of the model.

        Returns:
            (rows, vocabulary) float32.

        Raises:
            RuntimeError: the step cannot be recorded; nothing was done.
        """
        rows, end, context_length = len(tokens), int(positions.max()) + 1, model.config.context_length
        self._adopt(cache.layers, rows, end, context_length)
        shape = (_next_power_of_two(rows), min(context_length, _next_power_of_two(end, minimum=_MIN_KEYS)))
        self._tokens[:rows, 0] = tokens
        self._positions[: shape[0]] = F.pad(positions, (0, shape[0] - rows))  # unused rows get position 0
        if shape not in self._recorded:
            self._recorded[shape] = self._record(partial(self._step, model, *shape))
            tables = (module for module in model.modules() if isinstance(module, PositionTable))
            self._kept_alive += [table.rows(0, shape[1], self._tokens.device) for table in tables]
        return self._recorded[shape]()[:rows]

    def _step(self, model: DecoderOnly, rows: int, keys: int) -> Tensor:
        """The computation that is recorded: (rows, vocabulary) logits."""
        positions, config = self._positions[:rows], model.config
        buffers = [(key[:rows, :, :keys], value[:rows, :, :keys]) for key, value in self._buffers]
        layers = [SequenceLayerKVCache.from_buffers(key, value, positions) for key, value in buffers]
        inputs = row_attention_inputs(
            layers, positions, 1, keys, self._first_parameter.dtype, needs_key_positions=config.needs_key_positions
        )
        hidden = model.decode(self._tokens[:rows], inputs)
        return model.logits(hidden[:, -1]).float()

    def _adopt(self, layers: Sequence[LayerKVCache], rows: int, end: int, context_length: int) -> None:
        """Move the keys and values of a cache into the buffers, with room for its next positions."""
        has_rows, has_length = (len(self._tokens), self._buffers[0][0].shape[2]) if self._buffers else (0, 0)
        if rows > has_rows or end > has_length:
            length = min(context_length, _next_power_of_two(end, minimum=_MIN_BUFFER_LENGTH))
            self._reallocate(layers, max(has_rows, _next_power_of_two(rows)), max(has_length, length))
        key, _ = layers[0].buffers()
        if key.data_ptr() != self._buffers[0][0].data_ptr():
            for layer, (key, value) in zip(layers, self._buffers, strict=True):
                layer.move_to(key[:rows], value[:rows])

    def _reallocate(self, layers: Sequence[LayerKVCache], rows: int, length: int) -> None:
        """Allocate larger buffers, and discard what was recorded with the former ones."""
        self._recorded, self._kept_alive, self._buffers = {}, [], []
        self._record = RECORDERS[self._first_parameter.device.type](self._first_parameter.device)
        self._tokens = torch.zeros(rows, 1, dtype=torch.long, device=self._first_parameter.device)
        self._positions = torch.zeros_like(self._tokens[:, 0])
        for layer in layers:
            key, _ = layer.buffers()
            buffers = key.new_zeros(2, rows, key.shape[1], length, key.shape[3])
            self._buffers.append((buffers[0], buffers[1]))


def _next_power_of_two(number: int, *, minimum: int = 1) -> int:
    """The least power of two that is at least both."""
    return 1 << (max(number, minimum) - 1).bit_length()
