"""Speculative decoding: a drafter proposes tokens, which the model verifies in one forward pass.

The distribution of samples is that of the model alone; greedy results are identical.

Source: Leviathan et al. 2023; Chen et al. 2023.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile

import torch
from torch import Tensor

from lm.decoding import DecodeSession
from lm.decoding.batching import Finish, Sample, Token
from lm.decoding.sampling import NO_TOKEN, History, Sampler, draw, token_logprobs, top_alternatives
from lm.engine import OutputSpec

_INITIAL_LENGTH, _MAX_LENGTH, _INCREMENT, _DECREMENT = 4, 15, 2, 1
"""Draft tokens at first and at most; the increment after all were accepted, and the decrement after some were not.

Source of the schedule: Hugging Face's transformers, for assisted generation.
"""
_PATIENCE, _MAX_PAUSE = 3, 16
"""Consecutive drafts without any accepted token before a pause of one step, then of two, and so on; and the longest
pause.
"""
_MAX_NGRAM = 3
"""The longest n-gram that prompt lookup searches."""

DraftToken = tuple[int, Tensor | None]
"""A proposed token, and the (vocabulary,) probabilities from which it was drawn; None if it was certain."""
Drafter = Callable[[History, int, random.Random], Sequence[DraftToken]]
"""Proposes at most a number of tokens to follow those of one row; possibly none."""


def look_up_in_prompt(history: History, count: int, _: random.Random) -> list[DraftToken]:
    """Propose what followed the last occurrence of the last few tokens.

    Source: Saxena 2023 (prompt lookup decoding).
    """
    (tokens,) = history.rows
    for length in range(min(_MAX_NGRAM, len(tokens) - 1), 0, -1):
        for begin in range(len(tokens) - length - 1, -1, -1):
            if tokens[begin : begin + length] == tokens[-length:]:
                return [(token, None) for token in tokens[begin + length : begin + length + count]]
    return []


def model_drafter(session: DecodeSession, sampler: Sampler) -> Drafter:
    """Return what proposes samples of a smaller model with the same vocabulary, given a session without rows."""

    def propose(history: History, count: int, rng: random.Random) -> list[DraftToken]:
        (tokens,), draft_tokens = history.rows, list[DraftToken]()
        n_common = 0
        if len(session):  # forget what was not accepted
            pairs = zip(session.tokens[0], tokens[:-1], strict=False)
            n_common = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
            session.truncate([n_common])
        unread, tokens = tokens[n_common:], [*tokens]
        while len(draft_tokens) < count:
            output = session.extend(torch.tensor([unread])) if len(session) else session.add([unread])
            logits, history = output.last_logits.cpu(), History([tokens], history.prompt_lengths)
            probabilities = None if sampler.greedy else sampler.probabilities(logits, history)
            chosen = sampler.sample(logits, [rng], history) if probabilities is None else draw(probabilities, [rng])
            if (token := int(chosen)) == NO_TOKEN:
                break
            draft_tokens.append((token, None if probabilities is None else probabilities[0]))
            unread, tokens = [token], [*tokens, token]
        return draft_tokens

    return propose


@torch.inference_mode()
def decode_speculatively(session: DecodeSession, propose: Drafter, sample: Sample) -> Iterator[Token | Finish]:
    """Continue one sample by speculative decoding; see `lm.decoding.batching.decode`.

    Args:
        session: without rows.
        sample: with a seed it is reproducible, but not the one without a draft.
    """
    tokens = [*sample.prompt]
    following = session.add([tokens]).last_logits.cpu()
    draft_tokens: Sequence[DraftToken] = ()
    draft_length, n_rejected, pause = _INITIAL_LENGTH, 0, 0  # drafts without an accepted token; steps without drafts
    while True:
        n_accepted = -1  # the last token chosen is the model's own
        for logits, draft_token in zip(following[:, None], (*draft_tokens, None), strict=True):
            history = History([tokens], [len(sample.prompt)])
            token = _accept_or_resample(logits, draft_token, sample.next_sampler, sample.rng, history)
            logprob = float(token_logprobs(logits, torch.tensor([token])))
            yield from sample.append(token, logprob, top_alternatives(logits, sample.alternatives)[0])
            tokens = [*tokens, token]
            n_accepted += 1
            if sample.is_finished:
                return
            if draft_token is None or token != draft_token[0]:
                break
        if draft_tokens:
            all_accepted = n_accepted == len(draft_tokens)
            draft_length += _INCREMENT if all_accepted else -_DECREMENT
            draft_length = min(max(draft_length, 1), _MAX_LENGTH)
            n_rejected = 0 if n_accepted else n_rejected + 1
            pause = min(2 ** (n_rejected - _PATIENCE), _MAX_PAUSE) if n_rejected >= _PATIENCE else 0
        else:
            pause = max(0, pause - 1)
        session.truncate([len(tokens) - 1])
        count = 0 if pause else min(draft_length, sample.max_tokens - sample.n_tokens - 1)
        history = History([tokens], [len(sample.prompt)])
        draft_tokens = propose(history, count, sample.rng) if count else ()
        unread = [tokens[-1], *(token for token, _ in draft_tokens)]
        output = session.extend(torch.tensor([unread]), OutputSpec(logits_to_keep=len(unread)))
        assert output.logits is not None
        following = output.logits[0].cpu()


def _accept_or_resample(
    logits: Tensor, draft_token: DraftToken | None, sampler: Sampler, rng: random.Random, history: History
) -> int:
    """Accept the draft token with the probability that preserves the distribution, or sample another one.

    Args:
        logits: (1, vocabulary).
    """
    if draft_token is None or sampler.greedy:
        return int(sampler.sample(logits, [rng], history))
    target, (token, draft) = sampler.probabilities(logits, history)[0], draft_token
    if draft is None:
        draft = torch.zeros_like(target)
        draft[token] = 1.0
    if rng.random() * float(draft[token]) < float(target[token]):
        return token
    residual = (target - draft).clamp(min=0)
    return int(draw(residual[None] if residual.any() else target[None], [rng]))
