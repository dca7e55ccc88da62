"""A decode session that is fed tokens and says what follows each of them, as reading them at once does."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lm.decoding import DecodeSession, SourceBatch
from lm.engine import OutputSpec, plan_engines
from lm.model import DecoderOnly, EncoderDecoder

Model = DecoderOnly | EncoderDecoder


def session(model: Model, *ensemble: Model, cached: bool = True) -> DecodeSession:
    if ensemble:
        model.ensemble = torch.nn.ModuleList(ensemble)
    return DecodeSession(plan_engines(model, use_cache=cached))


class SessionDriver:
    """Rows that grow alike; models that translate are given sources."""

    def __init__(
        self,
        models: Model | Sequence[Model],
        source: Tensor | None = None,
        lengths: Tensor | None = None,
        *,
        cached: bool = True,
    ) -> None:
        models = models if isinstance(models, list) else [models]
        self.session = session(*models, cached=cached)
        self._sources: SourceBatch | None = None
        if source is not None:
            lengths = torch.full((len(source),), source.shape[1]) if lengths is None else lengths
            self._sources = (source, lengths)

    @property
    def length(self) -> int:
        return len(self.session.tokens[0]) if len(self.session) else 0

    def feed(self, tokens: Tensor, *, last_only: bool = False) -> Tensor:
        """(rows, n, vocabulary) logits after each of (rows, n) tokens; or (rows, 1, vocabulary)."""
        parts = []
        if not len(self.session):
            first = tokens if last_only or tokens.shape[1] == 1 else tokens[:, :1]
            parts.append(self.session.add(first.tolist(), self._sources))
            tokens = tokens[:, first.shape[1] :]
        if tokens.shape[1]:
            output_spec = OutputSpec(logits_to_keep=1 if last_only else tokens.shape[1])
            parts.append(self.session.extend(tokens, output_spec))
        return torch.cat([part.logits for part in parts], dim=1)

    def join(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """(prompts, vocabulary) logits after prompts that are taken in as rows."""
        return self.session.add(prompts).last_logits

    def reorder(self, rows: Tensor) -> None:
        if len(self.session):
            self.session.select(rows.tolist())

    def keep(self, rows: Sequence[int]) -> None:
        self.session.select(rows)

    def truncate(self, length: int) -> None:
        self.session.truncate([length] * len(self.session))
