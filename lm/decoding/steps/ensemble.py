"""Several models that decide together on each token."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lm.decoding.steps.steps import Steps


class Ensemble:
    """Steps of several models with one target vocabulary: probabilities are their means.

    Source: Sutskever et al. 2014, section 3.6.
    """

    def __init__(self, members: Sequence[Steps]) -> None:
        """`members` are one or more, with nothing fed yet."""
        self._members = tuple(members)

    @property
    def length(self) -> int:
        """Tokens in each row."""
        return self._members[0].length

    @property
    def leaves_freely(self) -> bool:
        """Whether rows leave all of the models so."""
        return all(member.leaves_freely for member in self._members)

    def feed(self, tokens: Tensor, *, last_only: bool = False) -> Tensor:
        """Append (rows, n) tokens; see `Steps.feed`. The logits are logarithms of probabilities.

        Where some vocabularies are padded to a larger size, the tokens are those that all models have.
        """
        logits = [member.feed(tokens, last_only=last_only).log_softmax(-1) for member in self._members]
        size = min(each.shape[-1] for each in logits)
        return torch.stack([each[..., :size] for each in logits]).logsumexp(0) - math.log(len(logits))

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was."""
        for member in self._members:
            member.reorder(rows)

    def truncate(self, length: int) -> None:
        """Take back all tokens but the first `length`."""
        for member in self._members:
            member.truncate(length)
