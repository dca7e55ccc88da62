"""Speculative decoding: a drafter proposes tokens, which the model verifies in one forward pass.

The distribution of samples is that of the model alone; greedy results are identical.

Source: Leviathan et al. 2023; Chen et al. 2023.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lm.decoding.batching import Finish, Sample, Token
from lm.decoding.sampling import NO_TOKEN, History, Sampler, draw, token_logprobs, top_alternatives
from lm.decoding.session import DecodeSession
from lm.engine.engine import OutputSpec

_INITIAL_LENGTH, _MAX_LENGTH, _INCREMENT, _DECREMENT = 4, 15, 2, 1
"""Draft tokens at first and at most; the increment after all were accepted, and the decrement after some were not.

Source of the schedule: Hugging Face's transformers, for assisted generation.
"""
_PATIENCE, _MAX_PAUSE = 3, 16
"""Consecutive drafts without any accepted token before a pause of one step, then of two, and so on; and the longest
pause.
"""
_MAX_NGRAM, _MIN_NGRAM = 3, 1
"""Lengths of the n-gram that prompt lookup searches, longest and shortest."""


@dataclass(frozen=True, slots=True)
class DraftToken:
    """A proposed token.

    Attributes:
        probabilities: (vocabulary,) from which it was drawn; None if it was certain.
    """

    token: int
    probabilities: Tensor | None = None


class Drafter(Protocol):
    """Proposes tokens."""

    def propose(self, history: History, count: int, rng: random.Random) -> list[DraftToken]:
        """Propose at most `count` tokens to follow those of one row; possibly none."""


class PromptLookupDrafter:
    """Proposes what followed the last occurrence of the last few tokens.

    Source: Saxena 2023 (prompt lookup decoding).
    """

    def propose(self, history: History, count: int, rng: random.Random) -> list[DraftToken]:  # noqa: ARG002
        (tokens,) = history.rows
        for length in range(min(_MAX_NGRAM, len(tokens) - 1), _MIN_NGRAM - 1, -1):
            last = tokens[-length:]
            for begin in range(len(tokens) - length - 1, -1, -1):
                if tokens[begin : begin + length] == last:
                    return [DraftToken(token) for token in tokens[begin + length : begin + length + count]]
        return []


class ModelDrafter:
    """Proposes what a smaller draft model samples."""

    def __init__(self, session: DecodeSession, sampler: Sampler) -> None:
        """Create a drafter from a session without rows, of a model with the same vocabulary."""
        self._session, self._sampler = session, sampler

    def propose(self, history: History, count: int, rng: random.Random) -> list[DraftToken]:
        draft_tokens: list[DraftToken] = []
        (tokens,), session = history.rows, self._session
        if len(session):  # forget what was not accepted
            read = session.tokens[0]
            pairs = enumerate(zip(read, tokens[:-1], strict=False))
            n_common = next(
                (index for index, (ours, theirs) in pairs if ours != theirs), min(len(read), len(tokens) - 1)
            )
            session.truncate([n_common])
            unread = tokens[n_common:]
        else:
            unread = tokens
        tokens = [*tokens]
        while len(draft_tokens) < count:
            output = session.extend(torch.tensor([unread])) if len(session) else session.add([unread])
            logits, history = output.last_logits.cpu(), History([tokens], history.prompt_lengths)
            probabilities = None if self._sampler.greedy else self._sampler.probabilities(logits, history)
            if probabilities is None:
                token = int(self._sampler.sample(logits, [rng], history))
            else:
                token = int(draw(probabilities, [rng]))
            if token == NO_TOKEN:
                break
            draft_tokens.append(DraftToken(token, None if probabilities is None else probabilities[0]))
            unread, tokens = [token], [*tokens, token]
        return draft_tokens


@dataclass
class AcceptanceStats:
    """Counts of draft tokens; accepted / proposed is the acceptance rate.

    Attributes:
        accepted: of them, those that the model accepted.
    """

    proposed: int = 0
    accepted: int = 0


@dataclass
class _DraftLength:
    """How many tokens to draft next.

    Attributes:
        length: while drafting.
        n_rejected: consecutive drafts without any accepted token.
        pause: steps to go without drafts.
    """

    length: int = _INITIAL_LENGTH
    n_rejected: int = 0
    pause: int = 0

    @property
    def next_length(self) -> int:
        return 0 if self.pause else self.length

    def update(self, proposed: int, accepted: int) -> None:
        if not proposed:
            self.pause = max(0, self.pause - 1)
            return
        self.length = (
            min(self.length + _INCREMENT, _MAX_LENGTH) if accepted == proposed else max(self.length - _DECREMENT, 1)
        )
        self.n_rejected = 0 if accepted else self.n_rejected + 1
        if self.n_rejected >= _PATIENCE:
            self.pause = min(2 ** (self.n_rejected - _PATIENCE), _MAX_PAUSE)


@torch.inference_mode()
def decode_speculatively(
    session: DecodeSession, drafter: Drafter, sample: Sample, stats: AcceptanceStats
) -> Iterator[Token | Finish]:
    """Continue one sample by speculative decoding; see `lm.decoding.batching.decode`.

    Args:
        session: without rows.
        sample: with a seed it is reproducible, but not the one without a draft.
    """
    tokens, sampler, draft_length = [*sample.prompt], sample.sampler, _DraftLength()
    draft_tokens: Sequence[DraftToken] = ()
    output = session.add([tokens])
    while True:
        assert output.logits is not None
        following = output.logits[0].cpu()
        n_accepted = -1  # the last token chosen is the model's own
        for logits, draft_token in zip(following[:, None], (*draft_tokens, None), strict=True):
            token = None if sample.n_tokens else sample.first_token
            if token is None:
                history = History([tokens], [len(sample.prompt)])
                token = _accept_or_resample(logits, draft_token, sampler, sample.rng, history)
            logprob = float(token_logprobs(logits, torch.tensor([token])))
            yield from sample.append(token, logprob, top_alternatives(logits, sample.alternatives)[0])
            tokens = [*tokens, token]
            n_accepted += 1
            if sample.is_finished or draft_token is None or token != draft_token.token:
                break
        stats.proposed, stats.accepted = stats.proposed + len(draft_tokens), stats.accepted + n_accepted
        if sample.is_finished:
            return
        draft_length.update(len(draft_tokens), n_accepted)
        session.truncate([len(tokens) - 1])
        count = min(draft_length.next_length, sample.max_tokens - sample.n_tokens - 1)
        history = History([tokens], [len(sample.prompt)])
        draft_tokens = drafter.propose(history, count, sample.rng) if count else ()
        unread = [tokens[-1], *(draft_token.token for draft_token in draft_tokens)]
        output = session.extend(torch.tensor([unread]), OutputSpec(logits_to_keep=len(unread)))


def _accept_or_resample(
    logits: Tensor, draft_token: DraftToken | None, sampler: Sampler, rng: random.Random, history: History
) -> int:
    """Accept the draft token with the probability that preserves the distribution, or sample another one.

    Args:
        logits: (1, vocabulary).
    """
    if draft_token is None or sampler.greedy:
        return int(sampler.sample(logits, [rng], history))
    target = sampler.probabilities(logits, history)[0]
    draft = draft_token.probabilities
    if draft is None:
        draft = torch.zeros_like(target)
        draft[draft_token.token] = 1.0
    if rng.random() * float(draft[draft_token.token]) < float(target[draft_token.token]):
        return draft_token.token
    residual = (target - draft).clamp(min=0)
    return int(draw(residual[None] if residual.any() else target[None], [rng]))
