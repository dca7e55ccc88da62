"""What follows a prompt, as it grows or as it was found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lm.decoding.generate import Alternatives, Finish, FinishReason, Token


@dataclass
class Continuation:
    """What follows a prompt: a sample, as far as it has grown, or a result of a search.

    Attributes:
        text: what is certain of it, without special tokens, up to the first stop string.
        tokens: ids; the one that ended the text is among them, and so are those of a stop string.
        logprobs: of each token, in nats, under the model itself.
        alternatives: to each token of a sample, if they were asked for.
        finish_reason: see `Finish`; None while a sample grows, "interrupted" where it was not left to end.
        score: of a result of a search, see `Hypothesis`.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    alternatives: list[Alternatives] = field(default_factory=list)
    finish_reason: FinishReason | Literal["interrupted"] | None = None
    score: float | None = None

    def take(self, event: Token | Finish) -> None:
        """Grow by an event of this sample."""
        if isinstance(event, Token):
            self.tokens.append(event.id)
            self.logprobs.append(event.logprob)
            self.alternatives.append(event.alternatives)
        else:
            self.finish_reason = event.reason
        self.text += event.text
