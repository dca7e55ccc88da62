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
from typing import NamedTuple

import torch
from torch import Tensor

from lm.decoding.batching import FinishReason
from lm.decoding.candidates import Candidates, top_k_tokens
from lm.decoding.sampling import Filter, History, apply_filters
from lm.decoding.session import DecodeSession, SourceBatch, StepOutput
from lm.engine.engine import OutputSpec
from lm.errors import UsageError
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
    filters: Sequence[Filter] = (),
    max_added_bias: float = math.inf,
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
        filters: applied to the logits; their changes count as log-probability, without renormalisation.
        max_added_bias: the most that the filters add to a logit; the smaller, the earlier a search may end.
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
    enough = beam_size if refill else None
    gain = max_added_bias if filters else 0.0
    source_states = [_SourceState(row, limit, n, enough, length_penalty, gain) for row, limit in enumerate(limits)]
    stops = torch.tensor([*stop_ids], dtype=torch.long)
    search, beams = _BeamSearch(prompts, beam_size, stops, refill, filters, coverage), _Beams.start(source_states)
    if first_tokens is None:
        output = session.add(prompts.tolist(), sources, search.output_spec)
    else:
        output = search.restrict_first_tokens(
            session.add(prompts.tolist(), sources, replace(search.output_spec, top_k=0)), first_tokens, session
        )
    while True:
        following = search.top_candidates(output, beams, session)
        beams, rows = search.step(beams, following, at_once=session.removes_rows_for_free)
        if not beams.sources:
            return [source.best() for source in source_states]
        session.select(rows.tolist())
        if coverage is not None:
            coverage.select(rows)
        output = session.extend(beams.tokens[:, :, -1].reshape(-1, 1), search.output_spec)


@dataclass(frozen=True, slots=True)
class _BeamSearch:
    """The constants of a search; see `beam_search`.

    Attributes:
        prompts: (sources, length) IDs.
        stops: (stop tokens,) IDs.
    """

    prompts: Tensor
    beam_size: int
    stops: Tensor
    refill: bool
    filters: Sequence[Filter]
    coverage: CoveragePenalty | None

    @property
    def k(self) -> int:
        """Candidate tokens per hypothesis: enough to fill the beam even if all stop tokens are among them."""
        return self.beam_size + len(self.stops)

    @property
    def output_spec(self) -> OutputSpec:
        return OutputSpec(top_k=0 if self.filters else self.k, attention=int(self.coverage is not None))

    def top_candidates(self, output: StepOutput, beams: _Beams, session: DecodeSession) -> TopK:
        if self.coverage is not None:
            self.coverage.add(output.attention)
        if output.top_k is not None:
            return output.top_k
        filtered = self._filtered_logits(beams, output.last_logits)
        return top_k_tokens(output.last_logits, filtered, self.k, by_compiled_code=session.is_compiled)

    def restrict_first_tokens(self, output: StepOutput, first: Tensor, session: DecodeSession) -> StepOutput:
        is_banned = torch.ones_like(output.last_logits, dtype=torch.bool)
        is_banned[:, first.to(is_banned.device)] = False
        filtered = output.last_logits.masked_fill(is_banned, -torch.inf)
        best = top_k_tokens(output.last_logits, filtered, self.k, by_compiled_code=session.is_compiled)
        return replace(output, top_k=best)

    def step(self, beams: _Beams, following: TopK, *, at_once: bool) -> tuple[_Beams, Tensor]:
        """Advance by a token: the best candidates finish hypotheses or extend them.

        Args:
            at_once: sources leave the batch as soon as they are done.

        Returns:
            The extended hypotheses, and the rows that they extend.
        """
        candidates = Candidates.extend(beams.total_logprobs, following)
        added = None if self.coverage is None else self.coverage.penalties().view(beams.total_logprobs.shape).tolist()
        is_end, is_extended = self._split_by_end(beams, candidates)
        at_limit = beams.at_limit()
        beams.finish(candidates, is_end, "end_of_text", added)
        beams.finish(candidates, is_extended & at_limit, "length", added)
        return beams.advance(candidates.keep(is_extended & ~at_limit), at_once=at_once)

    def _filtered_logits(self, beams: _Beams, logits: Tensor) -> Tensor:
        sources = [source.row for source in beams.sources]
        before = self.prompts.cpu()[sources, None].expand(-1, beams.tokens.shape[1], -1)
        tokens = torch.cat((before, beams.tokens), dim=2).flatten(0, 1).to(logits.device)
        return apply_filters(logits, self.filters, History(tokens, self.prompts.shape[1]))

    def _split_by_end(self, beams: _Beams, candidates: Candidates) -> tuple[Tensor, Tensor]:
        """Which candidates finish a hypothesis, and which extend one: (sources, n) booleans."""
        possible, is_stop = candidates.total_logprobs > -torch.inf, torch.isin(candidates.tokens, self.stops)
        n_finished = torch.tensor([0 if self.refill else len(source.finished) for source in beams.sources])
        first = possible & (torch.arange(possible.shape[1]) < self.beam_size - n_finished[:, None])
        if not self.refill:
            return first & is_stop, first & ~is_stop
        others = possible & ~is_stop
        return first & is_stop, others & (others.cumsum(1) <= self.beam_size)


class _FinishedHypothesis(NamedTuple):
    """A finished hypothesis, cheap to create, as most are not among the best.

    Attributes:
        cumulative_logprobs: up to each token.
    """

    score: float
    tokens: Sequence[int]
    cumulative_logprobs: Sequence[float]
    reason: FinishReason

    def hypothesis(self) -> Hypothesis:
        logprobs = tuple(after - before for before, after in pairwise((0.0, *self.cumulative_logprobs)))
        return Hypothesis(tuple(self.tokens), logprobs, self.score, self.reason)


@dataclass(slots=True)
class _SourceState:
    """The state of one source.

    Attributes:
        limit: the most tokens of a continuation.
        max_finished: finished hypotheses that end the search; None if only the score does.
        max_gain: the most that a token adds to a summed log-probability: 0 without filters.
        finished: hypotheses, best first.
    """

    row: int
    limit: int
    n: int
    max_finished: int | None
    length_penalty: float
    max_gain: float
    finished: list[_FinishedHypothesis] = field(default_factory=list)

    def finish(self, tokens: Sequence[int], sums: Sequence[float], reason: FinishReason, added: float) -> None:
        """Add a finished hypothesis, with the summed log-probability up to each of its tokens."""
        score = sums[-1] / len(tokens) ** self.length_penalty + added
        insort(self.finished, _FinishedHypothesis(score, tokens, sums, reason), key=lambda finished: -finished.score)

    def is_done(self, best: float, length: int) -> bool:
        """Whether no unfinished hypothesis can end among the `n` best.

        Args:
            best: summed log-probability of the best of them.
        """
        if best == -math.inf or (self.max_finished is not None and len(self.finished) >= self.max_finished):
            return True
        if len(self.finished) < self.n:
            return False
        return self._max_reachable_score(best, length) <= self.finished[self.n - 1].score

    def _max_reachable_score(self, total: float, length: int) -> float:
        """The highest score that a hypothesis can reach with one or more further tokens.

        With a gain g per token, the score after x tokens is (a + g·x) / x^p, where a = total - g · length. It is
        greatest at the smallest x, at the largest, or where its derivative is zero: at p·a / (g·(1 - p)).
        """
        gain, power = self.max_gain, self.length_penalty
        if gain == math.inf:
            return math.inf
        without = total - gain * length
        lengths: list[float] = [length + 1, self.limit]
        if gain and power != 1:
            optimum = power * without / (gain * (1 - power))
            lengths += [optimum] if length + 1 < optimum < self.limit else []
        return max((without + gain * x) / x**power for x in lengths)

    def best(self) -> list[Hypothesis]:
        return [finished.hypothesis() for finished in self.finished[: self.n]]


@dataclass(frozen=True, slots=True)
class _Beams:
    """The unfinished hypotheses of all sources in the batch, best first; on the CPU, as they are few.

    Attributes:
        total_logprobs: (sources, width) float64, summed log-probabilities; -inf where empty.
        tokens: (sources, width, length).
        cumulative_logprobs: (sources, width, length) float64, up to each token.
    """

    sources: Sequence[_SourceState]
    total_logprobs: Tensor
    tokens: Tensor
    cumulative_logprobs: Tensor

    @classmethod
    def start(cls, sources: Sequence[_SourceState]) -> _Beams:
        totals = torch.zeros(len(sources), 1, dtype=torch.float64)
        nothing = totals[:, :, None][..., :0]
        return cls(sources, totals, nothing.long(), nothing)

    def at_limit(self) -> Tensor:
        """(sources, 1): whether hypotheses reach max_tokens with one more token."""
        return torch.tensor([[self.tokens.shape[2] + 1 >= source.limit] for source in self.sources])

    def finish(
        self, candidates: Candidates, chosen: Tensor, reason: FinishReason, added: Sequence[Sequence[float]] | None
    ) -> None:
        """Finish candidates, (sources, n) booleans.

        Args:
            added: coverage penalty of each source and hypothesis; None for none.
        """
        sources, chosen_indices = chosen.nonzero(as_tuple=True)
        parents = candidates.parents[sources, chosen_indices]
        tokens = torch.cat(
            (self.tokens[sources, parents], candidates.tokens[sources, chosen_indices, None]), dim=1
        ).tolist()
        sums = torch.cat(
            (self.cumulative_logprobs[sources, parents], candidates.total_logprobs[sources, chosen_indices, None]),
            dim=1,
        ).tolist()
        for source, parent, ids, totals in zip(sources.tolist(), parents.tolist(), tokens, sums, strict=True):
            self.sources[source].finish(ids, totals, reason, added[source][parent] if added else 0.0)

    def advance(self, candidates: Candidates, *, at_once: bool) -> tuple[_Beams, Tensor]:
        """Return the hypotheses that the candidates extend, and the rows that they extend.

        Finished sources have none; they leave the batch at once, or now and then.
        """
        best = (
            candidates.total_logprobs[:, 0].tolist()
            if candidates.total_logprobs.shape[1]
            else [-math.inf] * len(self.sources)
        )
        length = self.tokens.shape[2] + 1
        done = [source.is_done(total, length) for source, total in zip(self.sources, best, strict=True)]
        kept_sources = _sources_to_keep(done, at_once=at_once)
        parents, tokens = candidates.parents[kept_sources], candidates.tokens[kept_sources]
        totals = candidates.total_logprobs[kept_sources].masked_fill(torch.tensor(done)[kept_sources, None], -torch.inf)
        before = parents[:, :, None].expand(-1, -1, self.tokens.shape[2])
        beams = _Beams(
            [self.sources[index] for index in kept_sources.tolist()],
            totals,
            torch.cat((self.tokens[kept_sources].gather(1, before), tokens[:, :, None]), dim=2),
            torch.cat((self.cumulative_logprobs[kept_sources].gather(1, before), totals[:, :, None]), dim=2),
        )
        rows = kept_sources[:, None] * self.total_logprobs.shape[1] + parents
        return beams, rows.flatten()


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
