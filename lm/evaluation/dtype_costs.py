"""The cost of each dtype of a model: bits/byte, bytes of weights, and time to score."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lm.evaluation.perplexity import BatchScored, FileScore, PerplexityResult
from lm.evaluation.window_scorers import TextScorer
from lm.text.text_file import TextFile


@dataclass
class DtypeCost:
    """The cost of one dtype.

    Attributes:
        batches: tokens and seconds of each.
    """

    dtype: str
    weight_bytes: int
    result: PerplexityResult = field(default_factory=PerplexityResult)
    batches: list[tuple[int, float]] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float:
        """Return the speed of all batches but the first, in which kernels are chosen, unless it is the only one."""
        tokens, seconds = zip(*(self.batches[1:] or self.batches), strict=True)
        return sum(tokens) / sum(seconds)

    def relative_increase(self, other: DtypeCost) -> float | None:
        """Return the relative increase of bits/byte over another dtype; None if that has none."""
        return self.result.nats / other.result.nats - 1 if other.result.nats else None


def measure_dtype_costs(
    scorers: Mapping[str, TextScorer], files: Sequence[TextFile], *, costs: list[DtypeCost]
) -> Iterator[BatchScored]:
    """Score files in each dtype with interleaved batches, so that other load on the machine affects all alike.

    Args:
        scorers: of the same model, by dtype.
        costs: receives the results, in the order of the dtypes; final at the end.

    Yields:
        BatchScored when all dtypes have scored a batch.
    """
    costs += [
        DtypeCost(dtype, sum(tensor.nbytes for tensor in scorer.model.state_dict().values()))
        for dtype, scorer in scorers.items()
    ]
    scored = 0
    for turn in zip(*(_time_events(scorer.measure(files)) for scorer in scorers.values()), strict=True):
        for cost, (event, seconds) in zip(costs, turn, strict=True):
            if isinstance(event, FileScore):
                cost.result = PerplexityResult.total((cost.result, event.result))
            else:
                cost.batches.append((event.tokens - scored, seconds))
        first, _ = turn[0]
        if isinstance(first, BatchScored):
            scored = first.tokens
            yield first


def _time_events(events: Iterator[BatchScored | FileScore]) -> Iterator[tuple[BatchScored | FileScore, float]]:
    """Yield events with the seconds that each took."""
    start = time.perf_counter()
    for event in events:
        yield event, time.perf_counter() - start
        start = time.perf_counter()
