"""The outputs of a forward pass, and the PyTorch engine, which runs every model and every forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lm.engine.kv_cache import DecoderModel, KVCache, ModelCache
from lm.kernels.torch_ops import TopK


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """The requested outputs of a forward pass.

    Attributes:
        logits_to_keep: logits after this many last tokens of each row.
        top_k: if the engine supports it, this many best next tokens of each row, instead of logits.
    """

    logits_to_keep: int = 1
    top_k: int = 0


NO_OUTPUT, LAST_LOGITS = OutputSpec(logits_to_keep=0), OutputSpec()


@dataclass(frozen=True, slots=True)
class Output:
    """The outputs of a forward pass.

    Attributes:
        logits: (rows, logits_to_keep, vocabulary) float32, of an ensemble log-probabilities; None if not requested, or
            if the top k were.
        top_k: the best next tokens of each row, if requested and supported.
    """

    logits: Tensor | None = None
    top_k: TopK | None = None

    @property
    def last_logits(self) -> Tensor:
        """(rows, vocabulary) logits after the last token of each row."""
        assert self.logits is not None, "no logits were requested"
        return self.logits[:, -1]


class TorchEngine:
    """Runs a model in PyTorch."""

    def __init__(self, model: DecoderModel) -> None:
        self.model = model

    def forward(
        self,
        tokens: Tensor,
        rows: Sequence[int],
        positions: Sequence[int],
        cache: KVCache,
        output_spec: OutputSpec,
        *,
        lengths: Sequence[int] | None = None,
        past: ModelCache | None = None,
    ) -> Output:
        """Compute a decode step, or, given `lengths`, a prefill, and write keys and values into the cache.

        Args:
            tokens: (rows, n) IDs.
            rows: of the cache; those of a step are not empty, those of a prefill are.
            positions: of the first token of each row; of a step.
            lengths: real tokens of each row, where padding follows them.
            past: keys and values of a prefix that the rows start with.
        """
        hidden = cache.step(tokens, rows, positions) if lengths is None else cache.prefill(tokens, rows, lengths, past)
        n, kept = tokens.shape[1], output_spec.logits_to_keep
        if not kept:
            return Output()
        if lengths is None or min(lengths) == n:
            hidden = hidden[:, -kept:]
        else:
            last = torch.tensor(lengths, device=hidden.device)[:, None] + torch.arange(-kept, 0, device=hidden.device)
            hidden = hidden[torch.arange(len(hidden), device=hidden.device)[:, None], last]
        return Output(self.model.logits(hidden).float())
