"""What training makes smaller: the surprisal of the targets of a batch."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lm.data.batches import Batch
from lm.hardware import Hardware
from lm.model.transformer import cross_entropy


def summed_loss(model: nn.Module, batch: Batch, hardware: Hardware, *, label_smoothing: float = 0.0) -> Tensor:
    """Summed surprisal, in nats, of the targets of a batch; those that are IGNORED count nothing.

    Args:
        model: a `DecoderOnly`, or an `EncoderDecoder` for a batch with a source.
        batch: what to read and predict.
        hardware: where the model is.
        label_smoothing: see `cross_entropy`.
    """

    def on_device(ids: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(ids).to(hardware.torch_device, non_blocking=True)

    with hardware.autocast():
        if batch.source is None or batch.source_lengths is None:
            logits = model(on_device(batch.inputs))
        else:
            logits = model(on_device(batch.source), on_device(batch.inputs), lengths=on_device(batch.source_lengths))
    return cross_entropy(logits, on_device(batch.targets), label_smoothing=label_smoothing)
