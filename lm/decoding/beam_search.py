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
from itertools import pairwise

import torch
from torch import Tensor

from lm.decoding import DecodeSession, SourceBatch
from lm.decoding.batching import Continuation, FinishReason
from lm.decoding.sampling import History, Sampler, apply_filters, top_k_tokens
from lm.engine import OutputSpec
from lm.errors import UsageError, nan_logits_error


@torch.inference_mode()
def beam_search(  # noqa: PLR0915 (one story)
    session: DecodeSession,
    prompts: Tensor,
    *,
    beam_size: int,
    max_tokens: Sequence[int],
    stop_ids: Collection[int] = (),
    length_penalty: float = 1.0,
    n: int = 1,
    refill: bool = False,
    sampler: Sampler | None = None,
    sources: SourceBatch | None = None,
) -> list[list[Continuation]]:
    """Find the most probable continuations of each source.

    Args:
        session: without rows.
        prompts: (sources, length) IDs to continue.
        max_tokens: of the continuations of each source, at least 1.
        length_penalty: at least 0: the score is the summed log-probability divided by length ** length_penalty.
        n: number of results for each source, at most `beam_size`.
        refill: replace finished hypotheses in the beam, as fairseq and CTranslate2 do.
        sampler: of the filters on logits, which see continuations without prompts; their changes count as
            log-probability, without renormalisation.
        sources: of models that translate: see `DecodeSession.add`.

    Returns:
        For each source its `n` best hypotheses (or all, if fewer), best first, without text.

    Raises:
        InputError: the model's output is not a number.
        UsageError: `n` is greater than the beam.

    Source: Graves 2012; the score of Wu et al. 2016, section 7, simplified as in fairseq.
    """
    if n > beam_size:
        raise UsageError(f"a beam of {beam_size} can't return {n} hypotheses")
    sampler, stops = sampler or Sampler(), torch.tensor([*stop_ids], dtype=torch.long)
    found: list[list[Continuation]] = [[] for _ in prompts]  # finished hypotheses, the best first
    # Unfinished ones are on the CPU, as they are few, the best first. In float32, summed log-probabilities of long
    # texts would make different tokens equal.
    numbers = list(range(len(prompts)))  # of the sources in the batch
    totals = torch.zeros(len(prompts), 1, dtype=torch.float64)  # (sources, width); -inf where empty
    sums: list[list[float]] = [[] for _ in prompts]  # of each row, up to each of its tokens

    def is_done(number: int, total: float, length: int) -> bool:
        """Whether no unfinished hypothesis, of which the best has a total, can end among the `n` best of a source."""
        finished = found[number]
        if total == -math.inf or (refill and len(finished) >= beam_size):
            return True
        if len(finished) < n or sampler.raises_logits:  # a filter may increase a total
            return False
        best_score = max(total / x**length_penalty for x in (length + 1, max_tokens[number]))
        return best_score <= finished[n - 1].score

    k = beam_size + len(stops)  # enough candidates even if all stop tokens are among them
    output_spec = OutputSpec(top_k=0 if sampler.filters else k)
    output = session.add(prompts.tolist(), sources, output_spec)
    while True:
        following = output.top_k
        if following is None:
            logits = output.last_logits
            continuations = [tokens[prompts.shape[1] :] for tokens in session.tokens]
            filtered = apply_filters(logits, sampler.filters, History(continuations, [0] * len(session), logits.device))
            following = top_k_tokens(logits, filtered, k, by_compiled_code=session.is_compiled)
        logprobs, n_sources, width, length = following.logprobs.cpu().double(), *totals.shape, len(sums[0]) + 1
        if bool(logprobs.isnan().any()):
            raise nan_logits_error()
        continued = totals[:, :, None] + logprobs.reshape(n_sources, width, -1)
        totals, order = continued.flatten(1).sort(stable=True, descending=True)  # (sources, candidates)
        parents = order // continued.shape[2]
        chosen = following.indices.cpu().reshape(n_sources, -1).gather(1, order)

        n_finished = torch.tensor([0 if refill else len(found[number]) for number in numbers])
        possible, is_stop = totals > -torch.inf, torch.isin(chosen, stops)
        best = possible & (torch.arange(possible.shape[1]) < beam_size - n_finished[:, None])
        others = possible & ~is_stop
        is_extended = others & (others.cumsum(1) <= beam_size) if refill else best & ~is_stop
        at_limit = torch.tensor([[length >= max_tokens[number]] for number in numbers])
        finishes: tuple[tuple[FinishReason, Tensor], ...] = (
            ("end_of_text", best & is_stop), ("length", is_extended & at_limit)
        )  # fmt: skip
        for reason, is_finished in finishes:
            for source, place in is_finished.nonzero().tolist():
                row = source * width + int(parents[source, place])
                hypothesis = [*session.tokens[row][prompts.shape[1] :], int(chosen[source, place])]
                upto = [0.0, *sums[row], float(totals[source, place])]
                nats, score = [after - before for before, after in pairwise(upto)], upto[-1] / length**length_penalty
                finished = Continuation("", hypothesis, nats, finish_reason=reason, score=score)
                insort(found[numbers[source]], finished, key=lambda one: -one.score)

        is_extended &= ~at_limit
        order = (~is_extended).sort(stable=True).indices[:, : int(is_extended.sum(1).max())]  # the chosen ones first
        totals = totals.gather(1, order).masked_fill(~is_extended.gather(1, order), -torch.inf)
        parents, chosen = parents.gather(1, order), chosen.gather(1, order)
        highest = totals[:, 0].tolist() if totals.shape[1] else [-math.inf] * n_sources
        done = [is_done(number, total, length) for number, total in zip(numbers, highest, strict=True)]
        kept = torch.tensor([index for index, is_last in enumerate(done) if not is_last], dtype=torch.long)
        numbers = [numbers[index] for index in kept.tolist()]
        if not numbers:
            return [hypotheses[:n] for hypotheses in found]
        parents, chosen = parents[kept], chosen[kept]
        totals = totals[kept]
        rows = (kept[:, None] * width + parents).flatten().tolist()
        sums = [[*sums[row], total] for row, total in zip(rows, totals.flatten().tolist(), strict=True)]
        session.select(rows)
        output = session.extend(chosen.reshape(-1, 1), output_spec)
