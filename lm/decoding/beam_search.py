"""Beam search: the most likely continuations, of several sources at a time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lm.decoding.filters import among_best
from lm.decoding.generate import FinishReason
from lm.decoding.steps import Steps
from lm.errors import UsageError


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A continuation.

    Attributes:
        tokens: the one that ended it is among them.
        logprobs: of each token, in nats.
        score: the sum of the log-probabilities, divided by the number of tokens to the power of the length penalty.
        finish_reason: whether the text is complete ("end_of_text") or has all the tokens asked for ("length").
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    score: float
    finish_reason: FinishReason


@dataclass(slots=True)
class _Partial:
    """A continuation that has not ended, and the row of the steps that it is in."""

    row: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    total: float = 0.0


@dataclass(slots=True)
class _Beam:
    """The hypotheses of one source, the unfinished ones best first."""

    live: list[_Partial]
    finished: list[Hypothesis] = field(default_factory=list)


@torch.inference_mode()
def beam_search(
    steps: Steps,
    prompts: Tensor,
    *,
    beam_size: int,
    max_tokens: int,
    stop_ids: Collection[int] = (),
    length_penalty: float = 1.0,
    n: int = 1,
) -> list[list[Hypothesis]]:
    """Find the most likely continuations of each source.

    Each step keeps the best `beam_size` continuations by their summed log-probability, fewer by those that finished
    before: a finished one keeps its place in the beam. A source is done when none that is unfinished can end among
    its `n` best. With a beam of 1 this is greedy decoding. Of equal candidates the one wins that goes on from the
    better hypothesis, and then the one with the lower id.

    Args:
        steps: of a model, with nothing fed yet; an encoder-decoder's hold the memory of one source a row.
        prompts: (sources, length) ids to continue.
        beam_size: candidates for each source.
        max_tokens: how many tokens a continuation may have.
        stop_ids: tokens that end one.
        length_penalty: at least 0; see `Hypothesis.score`.
        n: how many are wanted of each source, at most `beam_size`.

    Returns:
        For each source its `n` best hypotheses (or all there can be, if fewer), best first.

    Source: Graves 2012; the score of Wu et al. 2016, section 7, simplified as in fairseq.

    Raises:
        UsageError: `n` is more than the beam.
    """
    if n > beam_size:
        raise UsageError(f"a beam of {beam_size} has no {n} best: make --beam at least {n}, or -n at most {beam_size}")
    beams = [_Beam([_Partial(row)]) for row in range(len(prompts))]
    active = beams
    logits = steps.feed(prompts, last_only=True)[:, -1]
    for length in range(1, max_tokens + 1):
        _extend(active, logits, beam_size, stop_ids, length**length_penalty)
        active = [beam for beam in active if _can_improve(beam, n, max_tokens**length_penalty)]
        if not active or length == max_tokens:
            break
        live = [partial for beam in active for partial in beam.live]
        steps.reorder(torch.tensor([partial.row for partial in live]))
        logits = steps.feed(torch.tensor([partial.tokens[-1:] for partial in live]))[:, -1]
        for row, partial in enumerate(live):
            partial.row = row
    for beam in active:
        beam.finished += [_hypothesis(partial, max_tokens**length_penalty, "length") for partial in beam.live]
    return [sorted(beam.finished, key=lambda hypothesis: -hypothesis.score)[:n] for beam in beams]


def _extend(beams: Sequence[_Beam], logits: Tensor, beam_size: int, stop_ids: Collection[int], divisor: float) -> None:
    """Replace the unfinished hypotheses of each beam by their best continuations, and put those that end apart."""
    for beam, candidates in zip(beams, _candidates(beams, logits, beam_size), strict=True):
        grown = []
        for total, rank, token in candidates[: beam_size - len(beam.finished)]:
            parent = beam.live[rank]
            logprobs = (*parent.logprobs, total - parent.total)
            grown.append(_Partial(parent.row, (*parent.tokens, token), logprobs, total))
        beam.finished += [_hypothesis(one, divisor, "end_of_text") for one in grown if one.tokens[-1] in stop_ids]
        beam.live = [one for one in grown if one.tokens[-1] not in stop_ids]


def _candidates(beams: Sequence[_Beam], logits: Tensor, k: int) -> list[list[tuple[float, int, int]]]:
    """The `k` best continuations of each beam, best first: total, rank of the parent, token.

    Totals are float64: in float32 a long text's total would make tokens equal that are not.
    """
    if logits.device.type == "mps":  # has no float64
        logits = logits.cpu()
    vocabulary, width = logits.shape[-1], max(len(beam.live) for beam in beams)
    before = torch.tensor([partial.total for beam in beams for partial in beam.live], dtype=torch.float64)
    places = [place * width + rank for place, beam in enumerate(beams) for rank in range(len(beam.live))]
    totals = torch.full((len(beams) * width, vocabulary), -torch.inf, dtype=torch.float64, device=logits.device)
    totals[places] = before.to(logits.device)[:, None] + logits.double() - logits.logsumexp(-1, keepdim=True).double()
    totals = totals.view(len(beams), width * vocabulary)  # a beam with fewer rows than others ends in -inf
    k = min(k, totals.shape[1])
    chosen = among_best(totals, k).nonzero()[:, 1].view(len(beams), k)
    values, order = totals.gather(1, chosen).sort(stable=True, descending=True)
    pairs = zip(values.tolist(), chosen.gather(1, order).tolist(), strict=True)
    return [
        [(total, *divmod(index, vocabulary)) for total, index in zip(*pair, strict=True) if total > -torch.inf]
        for pair in pairs
    ]


def _can_improve(beam: _Beam, n: int, greatest_divisor: float) -> bool:
    """Whether an unfinished hypothesis may end among the best `n`: at best it grows to the full length for nothing."""
    if not beam.live or len(beam.finished) < n:
        return bool(beam.live)
    worst = sorted((hypothesis.score for hypothesis in beam.finished), reverse=True)[n - 1]
    return beam.live[0].total / greatest_divisor > worst


def _hypothesis(partial: _Partial, divisor: float, reason: FinishReason) -> Hypothesis:
    return Hypothesis(partial.tokens, partial.logprobs, partial.total / divisor, reason)
