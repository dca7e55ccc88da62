"""Token surprisal of windows, and of the targets of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from lm.config.data import IGNORE_INDEX
from lm.data.batch import Batch
from lm.evaluation.scoring_windows import CausalWindow
from lm.model.transformer import DecoderOnly, EncoderDecoder, Transformer
from lm.processes import ParallelMap

Nats = npt.NDArray[np.float64]

_MAX_LOGITS = 1 << 26  # bytes, whatever the vocabulary and the batch
_CACHE_LOGITS = 1 << 18  # 1 MB of them


def score_windows(model: DecoderOnly, windows: Sequence[CausalWindow]) -> list[Nats]:
    """Return the surprisal of the scored tokens of each window, after NaN for the unscored."""
    batch = Batch.from_rows([window.tokens for window in windows], [window.scored for window in windows])
    scored = score_batch(model, batch)
    return [
        np.concatenate((np.full(window.unscored, np.nan), nats)) for window, nats in zip(windows, scored, strict=True)
    ]


@torch.inference_mode()
def score_batch(model: DecoderOnly | EncoderDecoder, batch: Batch) -> list[Nats]:
    """Compute the surprisal of the targets of a training batch.

    Logits are computed only for targets, a bounded number at a time.

    Args:
        model: in eval mode; an `EncoderDecoder` for a batch with a source.

    Returns:
        (targets,) nats of each row.
    """
    is_target, device = batch.targets != IGNORE_INDEX, next(model.parameters()).device
    if not is_target.any():
        return [np.zeros(0)] * batch.rows
    inputs, targets, positions = (torch.from_numpy(ids).to(device) for ids in (batch.inputs, batch.targets, is_target))
    if isinstance(model, EncoderDecoder):
        assert batch.source is not None
        assert batch.source_lengths is not None
        source, lengths = (torch.from_numpy(ids).to(device) for ids in (batch.source, batch.source_lengths))
        hidden = model.encode_decode(source, inputs, lengths=lengths)
    else:
        hidden = model.hidden(inputs)  # padding comes last, so nothing that counts sees it
    nats = compute_surprisals(model, hidden[positions], targets[positions])
    return np.split(nats, np.cumsum(is_target.sum(axis=1))[:-1])


def score_batches(
    model: DecoderOnly | EncoderDecoder,
    batches: Iterable[Batch],
    parallel_map: ParallelMap[Batch, list[Nats]] | None = None,
) -> Iterator[list[Nats]]:
    """Score batches with `score_batch`, in order; in other processes if `parallel_map` is given."""
    return (score_batch(model, batch) for batch in batches) if parallel_map is None else parallel_map(batches)


def compute_surprisals(model: Transformer, hidden: torch.Tensor, targets: torch.Tensor) -> Nats:
    """Return (tokens,) nats for (tokens, d_model) hidden states and (tokens,) target IDs."""
    rows = max(1, _MAX_LOGITS // (hidden.element_size() * model.config.vocab_size))
    parts = [
        part
        for states, expected in zip(hidden.split(rows), targets.split(rows), strict=True)
        for part in _cross_entropies(model.logits(states), expected)
    ]
    return torch.cat(parts).cpu().numpy().astype(np.float64)


def _cross_entropies(logits: torch.Tensor, targets: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield (rows,) nats in parts, in float32, for (rows, vocabulary) logits and (rows,) targets.

    A CPU takes a few rows at a time, which stay in cache: a third of the time, and the same numbers.
    """
    rows = max(1, _CACHE_LOGITS // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    for some, expected in zip(logits.split(rows), targets.split(rows), strict=True):
        yield F.cross_entropy(some.float(), expected, reduction="none")
