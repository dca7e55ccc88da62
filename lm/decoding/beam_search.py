"""Beam search, for several sources at a time.

Each step keeps the best candidates of a source by summed log-probability: `beam_size`, minus the finished hypotheses,
which keep their place in the beam. With `refill`, the next best candidates take their place, and the search ends when
`beam_size` hypotheses have finished. A source is also done when no unfinished hypothesis can end among the `n` best.
With a beam of 1 this is greedy decoding. Ties are broken in favour of the better parent hypothesis, then of the lower
token ID.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor

from lm.decoding.batching import FinishReason
from lm.decoding.sampling import History, Sampler, apply_filters
from lm.decoding.session import DecodeSession, SourceBatch
from lm.engine.engine import OutputSpec
from lm.errors import UsageError, nan_logits_error
from lm.kernels.torch_ops import TopK

_MIN_DONE_FRACTION = 1 / 8
"""Fraction of finished sources before they leave the batch: removing rows costs about as much as a step."""

_SOURCE_MULTIPLE = 8
"""The number of sources in the batch stays a multiple of this."""


class CoveragePenalty:
    """The coverage penalty of hypotheses, from their attention to each source token so far.

    It uses the attention of each model's last layer, averaged over heads.

    Source: Wu et al. 2016, section 7.
    """

    def __init__(self, weight: float, sources: Sequence[SourceBatch]) -> None:
        """Start without any attention."""
        self.weight = weight
        self._attended = [torch.zeros(ids.shape[:2]) for ids, _ in sources]
        self._is_padding = [torch.arange(ids.shape[1]) >= lengths[:, None] for ids, lengths in sources]

    def add(self, weights: Sequence[Tensor]) -> None:
        """Add the attention weights of the next tokens, summed: (rows, source length) of each model."""
        self._attended = [attended + more.cpu() for attended, more in zip(self._attended, weights, strict=True)]

    def select(self, rows: Tensor) -> None:
        """Row i becomes the former row `rows[i]`."""
        self._attended = [attended.index_select(0, rows) for attended in self._attended]
        self._is_padding = [padding.index_select(0, rows) for padding in self._is_padding]

    def penalties(self) -> Tensor:
        """Return (rows,) penalties, at most 0: the weighted sum over source tokens of log(min(attention, 1)).

        With several models it is the mean.
        """
        minimum = torch.finfo(torch.float32).tiny
        scores = [
            attended.clamp(minimum, 1.0).log().masked_fill(is_padding, 0.0).sum(-1)
            for attended, is_padding in zip(self._attended, self._is_padding, strict=True)
        ]
        return self.weight * torch.stack(scores).mean(0)


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished hypothesis.

    Attributes:
        tokens: IDs, the end-of-text token included.
        logprobs: of each token, in nats.
        score: the summed log-probability divided by length ** length_penalty, plus the coverage penalty.
        finish_reason: "end_of_text", or "length" for max_tokens.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    score: float
    finish_reason: FinishReason


@torch.inference_mode()
def beam_search(
    session: DecodeSession,
    prompts: Tensor,
    *,
    beam_size: int,
    max_tokens: int | Sequence[int],
    stop_ids: Collection[int] = (),
    length_penalty: float = 1.0,
    n: int = 1,
    refill: bool = False,
    sampler: Sampler | None = None,
    first_tokens: Tensor | None = None,
    sources: Sequence[SourceBatch] | None = None,
    coverage: CoveragePenalty | None = None,
) -> list[list[Hypothesis]]:
    """Find the most probable continuations of each source.

    Args:
        session: without rows.
        prompts: (sources, length) IDs to continue.
        max_tokens: of a continuation, at least 1; for all sources, or for each.
        length_penalty: at least 0; see `Hypothesis.score`.
        n: number of results for each source, at most `beam_size`.
        refill: replace finished hypotheses in the beam, as fairseq and CTranslate2 do.
        sampler: of the filters on logits; their changes count as log-probability, without renormalisation.
        first_tokens: (n,) allowed first tokens; None for all.
        sources: of models that translate: see `DecodeSession.add`.

    Returns:
        For each source its `n` best hypotheses (or all, if fewer), best first.

    Raises:
        InputError: the model's output is not a number.
        UsageError: `n` is greater than the beam.

    Source: Graves 2012; the score of Wu et al. 2016, section 7, simplified as in fairseq.
    """
    if n > beam_size:
        raise UsageError(f"a beam of {beam_size} can't return {n} hypotheses")
    limits = [max_tokens] * len(prompts) if isinstance(max_tokens, int) else max_tokens
    sampler, stops = sampler or Sampler(), torch.tensor([*stop_ids], dtype=torch.long)
    found = [
        _Search(limit, n, beam_size if refill else None, length_penalty, sampler.raises_logits) for limit in limits
    ]
    beams, k = _Beams.start(found), beam_size + len(stops)  # enough candidates even if all stop tokens are among them
    output_spec = OutputSpec(top_k=0 if sampler.filters else k, attention=int(coverage is not None))
    first_spec = output_spec if first_tokens is None else replace(output_spec, top_k=0)
    output = session.add(prompts.tolist(), sources, first_spec)
    while True:
        following = output.top_k
        if following is None and first_tokens is not None:
            is_banned = torch.ones_like(output.last_logits, dtype=torch.bool)
            is_banned[:, first_tokens.to(is_banned.device)] = False
            filtered, first_tokens = output.last_logits.masked_fill(is_banned, -torch.inf), None
            following = session.top_k(output.last_logits, filtered, k)
        elif following is None:
            logits = output.last_logits
            history = History(session.tokens, [prompts.shape[1]] * len(session), logits.device)
            following = session.top_k(logits, apply_filters(logits, sampler.filters, history), k)
        if coverage is not None:
            coverage.add(output.attention)
        beams, rows = beams.step(
            following, stops, beam_size, refill=refill, coverage=coverage, at_once=session.removes_rows_for_free
        )
        if not beams.searches:
            return [search.best() for search in found]
        session.select(rows.tolist())
        if coverage is not None:
            coverage.select(rows)
        output = session.extend(beams.tokens[:, :, -1].reshape(-1, 1), output_spec)


@dataclass(slots=True)
class _Search:
    """What one source has found.

    Attributes:
        limit: the most tokens of a continuation.
        max_finished: finished hypotheses that end the search; None if only the score does.
        raises_logits: whether filters may, so that a summed log-probability may increase.
        finished: score, tokens, summed log-probability up to each token, and reason; the best first.
    """

    limit: int
    n: int
    max_finished: int | None
    length_penalty: float
    raises_logits: bool
    finished: list[tuple[float, Sequence[int], Sequence[float], FinishReason]] = field(default_factory=list)

    def finish(self, tokens: Sequence[int], sums: Sequence[float], reason: FinishReason, added: float) -> None:
        """Add a finished hypothesis, with the summed log-probability up to each of its tokens."""
        score = sums[-1] / len(tokens) ** self.length_penalty + added
        insort(self.finished, (score, tokens, sums, reason), key=lambda finished: -finished[0])

    def is_done(self, best: float, length: int) -> bool:
        """Whether no unfinished hypothesis can end among the `n` best.

        Args:
            best: summed log-probability of the best of them, which have `length` tokens.
        """
        if best == -math.inf or (self.max_finished is not None and len(self.finished) >= self.max_finished):
            return True
        if len(self.finished) < self.n or self.raises_logits:
            return False
        return max(best / x**self.length_penalty for x in (length + 1, self.limit)) <= self.finished[self.n - 1][0]

    def best(self) -> list[Hypothesis]:
        return [
            Hypothesis(tuple(tokens), tuple(after - before for before, after in pairwise((0.0, *sums))), score, reason)
            for score, tokens, sums, reason in self.finished[: self.n]
        ]


@dataclass(frozen=True, slots=True)
class _Beams:
    """The unfinished hypotheses of all sources in the batch, best first; on the CPU, as they are few.

    Attributes:
        totals: (sources, width) float64, summed log-probabilities; -inf where empty. In float32, those of long texts
            would make different tokens equal.
        tokens: (sources, width, length).
        sums: (sources, width, length) float64, summed log-probabilities up to each token.
    """

    searches: Sequence[_Search]
    totals: Tensor
    tokens: Tensor
    sums: Tensor

    @classmethod
    def start(cls, searches: Sequence[_Search]) -> _Beams:
        totals = torch.zeros(len(searches), 1, dtype=torch.float64)
        nothing = totals[:, :, None][..., :0]
        return cls(searches, totals, nothing.long(), nothing)

    def step(
        self,
        following: TopK,
        stops: Tensor,
        beam_size: int,
        *,
        refill: bool,
        coverage: CoveragePenalty | None,
        at_once: bool,
    ) -> tuple[_Beams, Tensor]:
        """Advance by a token: the best candidates finish hypotheses or extend them.

        Args:
            following: the best next tokens of each hypothesis.
            stops: (stop tokens,) IDs.
            at_once: sources leave the batch as soon as they are done; else now and then.

        Returns:
            The extended hypotheses, and the rows that they extend.
        """
        logprobs, n_sources = following.logprobs.cpu().double(), len(self.searches)
        if bool(logprobs.isnan().any()):
            raise nan_logits_error()
        continued = self.totals[:, :, None] + logprobs.reshape(*self.totals.shape, -1)
        totals, order = continued.flatten(1).sort(stable=True, descending=True)  # (sources, candidates)
        parents, tokens = order // continued.shape[2], following.indices.cpu().reshape(n_sources, -1).gather(1, order)

        n_finished = torch.tensor([0 if refill else len(search.finished) for search in self.searches])
        possible, is_stop = totals > -torch.inf, torch.isin(tokens, stops)
        best = possible & (torch.arange(possible.shape[1]) < beam_size - n_finished[:, None])
        others = possible & ~is_stop
        is_extended = others & (others.cumsum(1) <= beam_size) if refill else best & ~is_stop
        at_limit = torch.tensor([[self.tokens.shape[2] + 1 >= search.limit] for search in self.searches])
        penalties = None if coverage is None else coverage.penalties().view(self.totals.shape)
        endings: tuple[tuple[FinishReason, Tensor], ...] = (
            ("end_of_text", best & is_stop), ("length", is_extended & at_limit)
        )  # fmt: skip
        for reason, is_finished in endings:
            source, place = is_finished.nonzero(as_tuple=True)
            parent = parents[source, place]
            ids = torch.cat((self.tokens[source, parent], tokens[source, place, None]), dim=1).tolist()
            sums = torch.cat((self.sums[source, parent], totals[source, place, None]), dim=1).tolist()
            added = [0.0] * len(ids) if penalties is None else penalties[source, parent].tolist()
            for index, *finished in zip(source.tolist(), ids, sums, added, strict=True):
                self.searches[index].finish(finished[0], finished[1], reason, finished[2])

        is_extended &= ~at_limit
        order = (~is_extended).sort(stable=True).indices[:, : int(is_extended.sum(1).max())]  # the chosen ones first
        totals = totals.gather(1, order).masked_fill(~is_extended.gather(1, order), -torch.inf)
        parents, tokens = parents.gather(1, order), tokens.gather(1, order)
        highest = totals[:, 0].tolist() if totals.shape[1] else [-math.inf] * n_sources
        length = self.tokens.shape[2] + 1
        done = [search.is_done(total, length) for search, total in zip(self.searches, highest, strict=True)]
        kept = _sources_to_keep(done, at_once=at_once)
        parents, tokens = parents[kept], tokens[kept]
        totals = totals[kept].masked_fill(torch.tensor(done)[kept, None], -torch.inf)
        before = parents[:, :, None].expand(-1, -1, self.tokens.shape[2])
        beams = _Beams(
            [self.searches[index] for index in kept.tolist()],
            totals,
            torch.cat((self.tokens[kept].gather(1, before), tokens[:, :, None]), dim=2),
            torch.cat((self.sums[kept].gather(1, before), totals[:, :, None]), dim=2),
        )
        return beams, (kept[:, None] * self.totals.shape[1] + parents).flatten()


def _sources_to_keep(done: Sequence[bool], *, at_once: bool) -> Tensor:
    """The sources that stay in the batch: unfinished ones, and others unless they leave at once.

    Otherwise all stay while few are done, and then some, to round their number.
    """
    size = n_unfinished = len(done) - sum(done)
    if not at_once:
        few_are_done = n_unfinished and len(done) - n_unfinished <= _MIN_DONE_FRACTION * len(done)
        size = len(done) if few_are_done else -(-n_unfinished // _SOURCE_MULTIPLE) * _SOURCE_MULTIPLE
    first = sorted(range(len(done)), key=lambda index: done[index])[:size]
    return torch.tensor(sorted(first), dtype=torch.long)
