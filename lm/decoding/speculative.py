"""Speculative decoding: a draft guesses some tokens, which the model reads at once and keeps as far as it agrees.

What is drawn has the distribution that the model alone has; what is greedy is the same.

Source: Leviathan et al. 2023; Chen et al. 2023.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lm.decoding.filters import History
from lm.decoding.sampler import NO_TOKEN_LEFT, Sampler, draw, log_normaliser, top_alternatives
from lm.decoding.sampling import Finish, SampleSpec, SampleState, Token
from lm.decoding.session import DecodeSession
from lm.engine.engine import OutputSpec

_FIRST, _MOST, _MORE, _FEWER = 4, 15, 2, 1
"""Tokens guessed at first and at most; by how many more after all were kept, and by how many fewer after some weren't.

Source of the steps: Hugging Face's transformers, for assisted generation.
"""
_PATIENCE, _LONGEST_REST = 3, 16
"""Guesses in a row of which nothing is kept, until there are none for a token, then for two, and so on; and for how
many at most."""
_LONGEST, _SHORTEST = 3, 1
"""Tokens that must have occurred together before, for what followed them to be guessed."""


@dataclass(frozen=True, slots=True)
class DraftToken:
    """A token that may come next.

    Attributes:
        token: its id.
        probabilities: (vocabulary,) from which it was drawn; None if it was the only one thought of.
    """

    token: int
    probabilities: Tensor | None = None


class Drafter(Protocol):
    """What guesses."""

    def propose(self, history: History, count: int, rng: random.Random) -> list[DraftToken]:
        """At most so many tokens that may follow (1, length) others; none if nothing comes to mind."""


class PromptLookupDrafter:
    """Guesses that the last tokens go on as they did when they last occurred.

    Source: Saxena 2023 (prompt lookup decoding).
    """

    def propose(self, history: History, count: int, rng: random.Random) -> list[DraftToken]:  # noqa: ARG002
        """See `Drafter`."""
        tokens: list[int] = history.tokens[0].tolist()
        for length in range(min(_LONGEST, len(tokens) - 1), _SHORTEST - 1, -1):
            last = tokens[-length:]
            for begin in range(len(tokens) - length - 1, -1, -1):
                if tokens[begin : begin + length] == last:
                    return [DraftToken(token) for token in tokens[begin + length : begin + length + count]]
        return []


class ModelDrafter:
    """Guesses what a smaller model draws, by the same sampler."""

    def __init__(self, session: DecodeSession, sampler: Sampler) -> None:
        """Of a session with no rows yet, of a model with the same vocabulary."""
        self._session, self._sampler = session, sampler

    def propose(self, history: History, count: int, rng: random.Random) -> list[DraftToken]:
        """See `Drafter`."""
        found: list[DraftToken] = []
        unread = self._rewind(history.tokens[0].tolist())
        while len(found) < count:
            read = self._session.extend(torch.tensor([unread])) if len(self._session) else self._session.add([unread])
            logits = read.last_logits.cpu()
            probabilities = None if self._sampler.greedy else self._sampler.probabilities(logits, history)
            if probabilities is None:
                token = self._sampler.tokens(logits, [rng], history)
            else:
                token = draw(probabilities, [rng])
            if token == NO_TOKEN_LEFT:
                break
            found.append(DraftToken(int(token), None if probabilities is None else probabilities[0]))
            unread, history = [int(token)], history.append(token)
        return found

    def _rewind(self, tokens: list[int]) -> list[int]:
        """Take back what was read and did not come, and return what has to be read: the last token at least."""
        if not len(self._session):
            return tokens
        (read,) = self._session.tokens
        pairs = zip(read, tokens[:-1], strict=False)
        same = next((place for place, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
        kept = min(len(read), len(tokens) - 1) if same is None else same
        if kept < len(read):
            self._session.truncate([kept])
        return tokens[kept:]


@dataclass
class AcceptanceStats:
    """How often a draft was right.

    Attributes:
        proposed: tokens that it guessed.
        accepted: of them, those that the model kept.
    """

    proposed: int = 0
    accepted: int = 0


@dataclass
class _DraftLength:
    """How many tokens to guess next.

    Attributes:
        width: while guesses are asked for.
        misses: guesses in a row of which nothing was kept.
        rest: tokens to go on without any.
    """

    width: int = _FIRST
    misses: int = 0
    rest: int = 0

    @property
    def count(self) -> int:
        return 0 if self.rest else self.width

    def note(self, guessed: int, kept: int) -> None:
        """Learn what came of so many guesses."""
        if not guessed:
            self.rest = max(0, self.rest - 1)
            return
        self.width = min(self.width + _MORE, _MOST) if kept == guessed else max(self.width - _FEWER, 1)
        self.misses = 0 if kept else self.misses + 1
        if self.misses >= _PATIENCE:
            self.rest = min(2 ** (self.misses - _PATIENCE), _LONGEST_REST)


@torch.inference_mode()
def generate_speculatively(
    session: DecodeSession,
    drafter: Drafter,
    prompt: Tensor,
    spec: SampleSpec,
    sampler: Sampler,
    *,
    stats: AcceptanceStats,
    stop_ids: Collection[int] = (),
    alternatives: int = 0,
) -> Iterator[Token | Finish]:
    """Continue a prompt in one sample.

    Args:
        session: with no rows yet.
        drafter: guesses.
        prompt: (1, length) ids; at least one.
        spec: the sample.
        sampler: chooses the tokens; with a seed the sample is always the same, but another than without a draft.
        stats: counts.
        stop_ids: tokens that end the sample.
        alternatives: how many of the most likely tokens come with each token.

    Yields:
        Tokens, and a Finish.

    Raises:
        InputError: the model's output is not a number.
        UsageError: the sampler rules out every token.
    """
    sample = SampleState.of(spec, sampler)
    history, pace = History(prompt.cpu(), prompt.shape[1]), _DraftLength()
    guesses: Sequence[DraftToken] = ()
    read = session.add(prompt.tolist())
    while True:
        assert read.logits is not None
        following = read.logits[0].cpu()
        kept = -1  # the model chooses one token more than it keeps
        for logits, guess in zip(following[:, None], (*guesses, None), strict=True):
            token = sample.first
            if token is None:
                token = _accept_or_resample(logits, guess, sampler, sample.rng, history)
            logprob = float(logits[0, max(token, 0)] - log_normaliser(logits))
            yield from sample.append(token, logprob, top_alternatives(logits, alternatives)[0], stop_ids)
            history = history.append(torch.tensor([token]))
            kept += 1
            if sample.is_finished or guess is None or token != guess.token:
                break
        stats.proposed, stats.accepted = stats.proposed + len(guesses), stats.accepted + kept
        if sample.is_finished:
            return
        pace.note(len(guesses), kept)
        session.truncate([history.tokens.shape[1] - 1])
        count = min(pace.count, sample.left - 1)
        guesses = drafter.propose(history, count, sample.rng) if count else ()
        unread = [int(history.tokens[0, -1]), *(guess.token for guess in guesses)]
        read = session.extend(torch.tensor([unread]), OutputSpec(logits_to_keep=len(unread)))


def _accept_or_resample(
    logits: Tensor, guess: DraftToken | None, sampler: Sampler, rng: random.Random, history: History
) -> int:
    """The token that comes next: the guess, with the probability that keeps the distribution, or another.

    Args:
        logits: (1, vocabulary).
        guess: what was guessed, if anything.
        sampler: chooses.
        rng: of random numbers.
        history: what came before.
    """
    if guess is None or sampler.greedy:
        return int(sampler.tokens(logits, [rng], history))
    ours = sampler.probabilities(logits, history)[0]
    if guess.probabilities is None:
        theirs = torch.zeros_like(ours)
        theirs[guess.token] = 1.0
    else:
        theirs = guess.probabilities
    if rng.random() * float(theirs[guess.token]) < float(ours[guess.token]):
        return guess.token
    rest = (ours - theirs).clamp(min=0)
    return int(draw(rest[None] if rest.any() else ours[None], [rng]))
