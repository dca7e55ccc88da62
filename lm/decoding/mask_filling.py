"""Mask filling (fill-mask) with a masked model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from lm.corpus.ragged import RaggedArray
from lm.data.batch import batched
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
        mask, frame = require_mask_token(self.tokenizer), build_text_frame(self.tokenizer)
        for batch in batched(texts, self.batch_size):
            rows = [self.encode(text) for text in batch]
            found = iter(self._top_candidates(rows, mask, k))
            for text, row in zip(batch, rows, strict=True):
                candidates = tuple(islice(found, int((row == mask).sum())))
                filled = row.copy()
                filled[row == mask] = [ranked[0].id for ranked in candidates]
                inner = filled[len(frame.before) : len(filled) - len(frame.after)]
                yield FilledText(text, candidates, self.tokenizer.decode(inner, skip_special=False))

    @torch.inference_mode()
    def _top_candidates(self, rows: Sequence[NDArray[np.int64]], mask: int, k: int) -> list[tuple[MaskCandidate, ...]]:
        """The candidates of all masks of some rows, one mask after the other."""
        ids, device = RaggedArray.from_rows(rows), next(self.model.parameters()).device
        tokens, lengths = (torch.from_numpy(each).to(device) for each in (ids.to_padded(0), ids.lengths()))
        hidden = self.model.hidden(tokens, target_lengths=lengths)
        probabilities = self.model.logits(hidden[tokens == mask]).float().softmax(-1)
        known = probabilities[:, : self.tokenizer.vocab_size]  # the others are vocabulary padding
        top, found = known.topk(min(k, known.shape[-1])), []
        for indices, values in zip(top.indices.tolist(), top.values.tolist(), strict=True):
            check_not_nan(values[0])
            texts = [self.tokenizer.token_bytes(index).decode(errors="replace") for index in indices]
            found.append(tuple(map(MaskCandidate, indices, texts, values)))
        return found

    def encode(self, text: str) -> NDArray[np.int64]:
        """Encode a text with start and end tokens; UsageError if it is too long."""
        ids = build_text_frame(self.tokenizer).wrap(self.tokenizer.encode(text, parse_special=True))
        if len(ids) > (context := self.model.config.context_length):
            raise UsageError(
                f"the text has {len(ids):,} tokens with its start and end, more than the context {context:,}"
            )
        return ids
