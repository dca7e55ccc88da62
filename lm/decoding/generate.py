"""Generation as a stream of events: tokens as they are chosen, and why each sample ended."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from lm.data.tokenizer import Tokenizer
from lm.decoding.sampling import Sampler
from lm.decoding.steps import Steps
from lm.errors import UsageError

FinishReason = Literal["length", "end_of_text"]


@dataclass(frozen=True, slots=True)
class Token:
    """A token was chosen.

    Attributes:
        row: number of the sample.
        id: the token; the one that ends a text is among them.
        logprob: nats, under the model itself (temperature 1, no filter).
    """

    row: int
    id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class Finish:
    """A sample ended: it has all the tokens asked for ("length"), or its text is complete ("end_of_text")."""

    row: int
    reason: FinishReason


def prompt_ids(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """A prompt's ids, after the document-start token if the tokenizer has one.

    Raises:
        UsageError: there is neither a prompt nor a start token to begin from.
    """
    start = [] if tokenizer.start_of_text is None else [tokenizer.start_of_text]
    ids = [*start, *tokenizer.encode(prompt)]
    if not ids:
        raise UsageError("there is nothing to begin from: this tokenizer has no document-start token; give a prompt")
    return ids


@torch.inference_mode()
def generate(
    steps: Steps,
    prompt: Sequence[int],
    sampler: Sampler,
    *,
    max_tokens: int,
    stop_ids: Collection[int] = (),
    n: int = 1,
    first: int = 0,
) -> Iterator[Token | Finish]:
    """Continue a prompt in `n` samples side by side; those that end leave the batch.

    Args:
        steps: of a model, with nothing fed yet.
        prompt: ids, at least one.
        sampler: chooses the tokens; sample i draws the same numbers whatever `n` and `first`.
        max_tokens: how many tokens a sample may have.
        stop_ids: tokens that end a sample.
        n: how many samples.
        first: number of the first sample; the others follow.

    Yields:
        Tokens in the order they come, a round for all samples after another, and one Finish for each sample.
    """
    logits = steps.feed(torch.tensor([list(prompt)]), last_only=True)[:, -1]
    if n > 1:
        steps.reorder(torch.zeros(n, dtype=torch.long))
        logits = logits.expand(n, -1)
    rows = list(range(first, first + n))
    generators = [sampler.generator(row) for row in rows]
    for remaining in reversed(range(max_tokens)):
        chosen, logprobs = sampler.choose(logits, generators)
        going = []
        ids, nats = torch.stack((chosen.double(), logprobs.double())).tolist()  # the one transfer of a step
        for index, (row, token, logprob) in enumerate(zip(rows, map(int, ids), nats, strict=True)):
            yield Token(row, token, logprob)
            if token in stop_ids or not remaining:
                yield Finish(row, "end_of_text" if token in stop_ids else "length")
            else:
                going.append(index)
        if not going:
            return
        if len(going) < len(rows):
            kept = torch.tensor(going)
            steps.reorder(kept)
            chosen = chosen[kept.to(chosen.device)]
            rows, generators = [rows[index] for index in going], [generators[index] for index in going]
        logits = steps.feed(chosen[:, None])[:, -1]
