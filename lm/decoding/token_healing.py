"""Token healing: the last token of a prompt is chosen again, from those that start with its text.

A prompt is tokenised where it ends, often where the whole text has no token boundary: inside a word, or after a space.
Such tokens are rare in training, and what follows them is garbage.

Source: Lundberg 2023 (guidance).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import takewhile

import torch
from torch import Tensor

from lm.decoding.sampling import History, Sampler
from lm.tokenizer import Tokenizer


@lru_cache(8)
def _spellings(tokenizer: Tokenizer) -> list[tuple[bytes, int]]:
    """The bytes and IDs of all tokens but special ones, sorted."""
    ordinary = {*range(tokenizer.vocab_size)} - {*tokenizer.special_tokens.values()}
    return sorted((tokenizer.token_bytes(token), token) for token in ordinary)


def _tokens_that_begin(tokenizer: Tokenizer, beginning: bytes) -> Tensor:
    """The IDs of all tokens but special ones that start with some bytes."""
    spellings, size = _spellings(tokenizer), len(beginning)
    start = bisect_left(spellings, beginning, key=lambda pair: pair[0])
    return torch.tensor([token for _, token in takewhile(lambda pair: pair[0][:size] == beginning, spellings[start:])])


@dataclass(frozen=True)
class Healing:
    """The last token of a prompt, which is chosen again.

    Attributes:
        token: its ID.
        before: the IDs before it.
        beginning: its bytes.
        sampler: of tokens that start with them.
    """

    token: int
    before: Sequence[int]
    beginning: bytes
    sampler: Sampler
    tokenizer: Tokenizer

    @classmethod
    def find(cls, tokenizer: Tokenizer, text: str, ids: Sequence[int], sampler: Sampler) -> Healing | None:
        """Return the end of a prompt that is chosen again; None if it is no text, or no other ID stays."""
        beginning = tokenizer.token_bytes(ids[-1])
        # some tokenizers start a text with a space, and others normalise it
        is_text = text and beginning and (tokenizer.marks or f" {text}".encode().endswith(beginning))
        if not is_text or len(ids) < 2:
            return None
        allowed = _tokens_that_begin(tokenizer, beginning)

        def allow(logits: Tensor, _: History) -> Tensor:
            index = allowed.to(logits.device)
            return torch.full_like(logits, -torch.inf).index_copy(-1, index, logits[:, index])

        return cls(ids[-1], ids[:-1], beginning, replace(sampler, filters=(allow, *sampler.filters)), tokenizer)

    def text_beyond(self, token: int) -> str:
        """Return the complete characters of a token beyond the prompt."""
        if self.tokenizer.marks:  # letters may be in capitals after other tokens, and a mark is no text
            own, chosen = (self.tokenizer.decode_stream(self.before).feed(each) for each in (self.token, token))
            return chosen[len(own) :]
        return self.tokenizer.token_bytes(token)[len(self.beginning) :].decode(errors="ignore")
