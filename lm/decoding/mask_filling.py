"""Mask filling (fill-mask) with a masked model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from lm.corpus.ragged import RaggedArray
from lm.data.bucketing import batched
from lm.errors import UsageError, check_not_nan
from lm.model.transformer import EncoderOnly
from lm.tokenizer.special_tokens import build_text_frame, require_mask_token
from lm.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class MaskCandidate:
    """A candidate token for a mask.

    Attributes:
        text: of the token, with replacement characters for incomplete characters.
    """

    id: int
    text: str
    probability: float


@dataclass(frozen=True, slots=True)
class FilledText:
    """A text with candidates for its masks.

    Attributes:
        blanks: the most probable tokens of each mask, best first, predicted with the other masks in place.
        filled: the text with the best candidate for each mask.
    """

    text: str
    blanks: tuple[tuple[MaskCandidate, ...], ...]
    filled: str


@dataclass(frozen=True)
class MaskFiller:
    """Fills masks with one model.

    Attributes:
        batch_size: texts per batch; affects only speed.
    """

    model: EncoderOnly
    tokenizer: Tokenizer
    batch_size: int = 16

    def fill(self, texts: Iterable[str], *, k: int = 5) -> Iterator[FilledText]:
        """Predict the k most probable tokens for each mask of each text, in order.

        A mask is spelled as in the tokenizer, such as `[MASK]`, and stands for one token.

        Raises:
            InputError: the tokenizer has no token for a character, or the model's output is not a number.
            UsageError: a text is longer than the model's context, or the tokenizer has no mask token.
        """
        for batch in batched(texts, self.batch_size):
            yield from self._fill(batch, k)

    def _fill(self, texts: Sequence[str], k: int) -> Iterator[FilledText]:
        rows = [self.encode(text) for text in texts]
        ids = RaggedArray.from_rows(rows)
        tokens, lengths = torch.from_numpy(ids.to_padded(0)), torch.from_numpy(ids.lengths())
        blanks = tokens == require_mask_token(self.tokenizer)
        all_candidates = iter(self._top_candidates(tokens, lengths, blanks, k))
        for text, row, number in zip(texts, rows, blanks.sum(1).tolist(), strict=True):
            candidates = tuple(islice(all_candidates, number))
            yield FilledText(text, candidates, self._fill_in(row, candidates))

    @torch.inference_mode()
    def _top_candidates(
        self, tokens: torch.Tensor, lengths: torch.Tensor, blanks: torch.Tensor, k: int
    ) -> list[tuple[MaskCandidate, ...]]:
        device = next(self.model.parameters()).device
        hidden = self.model.hidden(tokens.to(device), target_lengths=lengths.to(device))
        probabilities = self.model.logits(hidden[blanks.to(device)]).float().softmax(-1)
        known = probabilities[:, : self.tokenizer.vocab_size]  # the others are vocabulary padding
        top = known.topk(min(k, known.shape[-1]))
        candidates = []
        for ids, probabilities_of_ids in zip(top.indices.tolist(), top.values.tolist(), strict=True):
            check_not_nan(probabilities_of_ids[0])
            candidates.append(tuple(map(self._to_candidate, ids, probabilities_of_ids)))
        return candidates

    def _to_candidate(self, index: int, probability: float) -> MaskCandidate:
        return MaskCandidate(index, self.tokenizer.token_bytes(index).decode(errors="replace"), probability)

    def encode(self, text: str) -> NDArray[np.int64]:
        """Encode a text with start and end tokens; UsageError if it is too long."""
        ids = build_text_frame(self.tokenizer).wrap(self.tokenizer.encode(text, parse_special=True))
        context = self.model.config.context_length
        if len(ids) > context:
            raise UsageError(
                f"the text has {len(ids):,} tokens with its start and end, but the model's context is {context:,}; "
                "give less text"
            )
        return ids

    def _fill_in(self, row: NDArray[np.int64], candidates: Sequence[Sequence[MaskCandidate]]) -> str:
        frame, filled = build_text_frame(self.tokenizer), row.copy()
        filled[row == require_mask_token(self.tokenizer)] = [ranked[0].id for ranked in candidates]
        return self.tokenizer.decode(filled[len(frame.before) : len(filled) - len(frame.after)], skip_special=False)
