"""Generation from many prompts: a batch is refilled as samples end, so that it stays full whatever their lengths."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from lm.decoding.filters import History
from lm.decoding.generate import Batch, Finish, Row, Token
from lm.decoding.sampling import Sampler
from lm.decoding.session import DecodeSession

_REFILLED = 8
"""One of how many places is free when others come: reading several prompts together is quicker than one by one."""


@dataclass(frozen=True, slots=True)
class Request:
    """A sample, and the prompt that it continues.

    Attributes:
        prompt: ids, at least one.
        row: the sample.
    """

    prompt: Sequence[int]
    row: Row


@torch.inference_mode()
def refilled(
    session: DecodeSession,
    requests: Iterable[Request],
    sampler: Sampler,
    *,
    rows: int,
    stop_ids: Collection[int] = (),
    alternatives: int = 0,
) -> Iterator[Token | Finish]:
    """Continue prompts in samples side by side; those that end leave their places to others.

    Args:
        session: with no rows yet.
        requests: what is asked for; more of them are taken only when there is room.
        sampler: chooses the tokens; a sample draws the same numbers whatever samples are beside it.
        rows: how many samples there are side by side at most.
        stop_ids: tokens that end a sample.
        alternatives: how many of the most likely tokens come with each token.

    Yields:
        Tokens and one Finish for each sample; those of different samples mix.

    Raises:
        InputError: the model's output is not a number.
        UsageError: the sampler rules out every token.

    Source: Yu et al. 2022 (Orca), section 3.2.
    """
    batch = _RefilledBatch(session, sampler, stop_ids=stop_ids, alternatives=alternatives)
    waiting = iter(requests)
    while True:
        free = rows - len(batch)
        if free == rows or free * _REFILLED >= rows:
            batch.join(list(islice(waiting, free)))
        if not len(batch):
            return
        yield from batch.advance()


class _RefilledBatch(Batch):
    """A batch into which samples come."""

    def __init__(
        self, session: DecodeSession, sampler: Sampler, *, stop_ids: Collection[int], alternatives: int
    ) -> None:
        """No samples yet; see `refilled`."""
        super().__init__(session, sampler, [], _nothing(), torch.empty(0), stop_ids=stop_ids, alternatives=alternatives)

    def join(self, requests: Sequence[Request]) -> None:
        """Read the prompts of further samples, if there are any."""
        if not requests:
            return
        if not self._samples:
            self._session.release(range(len(self._session)))
            self._history = _nothing()
        prompts = [request.prompt for request in requests]
        logits = self._session.add(prompts).last
        self._logits = torch.cat((self._logits, logits)) if self._samples else logits
        self._history = self._history.above(prompts)
        self._samples += self._begun([request.row for request in requests])

    def _leave(self, kept: Sequence[int]) -> None:
        """Leave the places of the others to samples to come."""
        self._session.release({*range(len(self._session))} - {*kept})


def _nothing() -> History:
    return History(torch.empty(0, 0, dtype=torch.long), 0)
