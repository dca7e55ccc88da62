"""The surprisal of given translations: each target token, its end included, after its source and the tokens before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from lm.errors import InputError, UsageError
from lm.evaluation.perplexity import Tally
from lm.evaluation.scoring import Nats, surprisals
from lm.model.transformer import EncoderDecoder
from lm.text.parallel import Pair
from lm.tokenizer.tokenizer import Tokenizer

_PAIRS_AT_ONCE = 4096  # are put in order of length together
_BATCH_TOKENS = 4096  # of padded sources or targets, whichever is more


@dataclass(frozen=True)
class TokenPair:
    """A pair as a model reads it.

    Attributes:
        source: ids, the tag of a direction and the end token included.
        target: ids, the end token included.
    """

    source: Sequence[int]
    target: Sequence[int]


class PairEncoder:
    """Turns pairs of text into ids, as in training: source and target each end with the end token."""

    def __init__(self, tokenizer: Tokenizer, source_tokenizer: Tokenizer | None, *, tag: int | None) -> None:
        """The tokenizers of a run (one where they are joint), and the token that asks for a direction, if one does.

        Raises:
            UsageError: a tokenizer has no token that ends a text.
        """
        self._target, self._source = tokenizer, source_tokenizer or tokenizer
        end, source_end, start = self._target.end_of_text, self._source.end_of_text, self._target.start_of_text
        if end is None or source_end is None or start is None:
            raise UsageError("the tokenizer has no token that ends a text, which an encoder-decoder needs")
        self._end, self._source_end, self.start = end, source_end, start
        self._before = [] if tag is None else [tag]

    def encode(self, pairs: Sequence[Pair]) -> list[TokenPair]:
        """The ids of some pairs."""
        sources = self._source.encode_batch([pair.source for pair in pairs])
        targets = self._target.encode_batch([pair.target for pair in pairs])
        return [
            TokenPair([*self._before, *source.tolist(), self._source_end], [*target.tolist(), self._end])
            for source, target in zip(sources, targets, strict=True)
        ]


def score_pairs(
    model: EncoderDecoder, pairs: Sequence[TokenPair], *, start: int, batch_tokens: int = _BATCH_TOKENS
) -> list[Nats]:
    """Surprisal of each target token of each pair.

    Args:
        model: in eval mode.
        pairs: scored in batches of like lengths; the result does not depend on which.
        start: the token that the decoder begins with.
        batch_tokens: padded tokens of a batch, on the longer side.

    Returns:
        (target tokens,) nats in float64 for each pair.
    """
    order = sorted(range(len(pairs)), key=lambda row: (len(pairs[row].target), len(pairs[row].source)))
    scored: list[Nats] = [np.zeros(0)] * len(pairs)
    for rows in _batches(order, lambda row: max(len(pairs[row].source), len(pairs[row].target)), batch_tokens):
        for row, nats in zip(rows, _score([pairs[row] for row in rows], model, start), strict=True):
            scored[row] = nats
    return scored


def _batches(rows: Iterable[int], length: Callable[[int], int], limit: int) -> Iterator[list[int]]:
    batch: list[int] = []
    longest = 0
    for row in rows:
        longest = max(longest, length(row))
        if batch and longest * (len(batch) + 1) > limit:
            yield batch
            batch, longest = [], length(row)
        batch.append(row)
    if batch:
        yield batch


@torch.inference_mode()
def _score(batch: Sequence[TokenPair], model: EncoderDecoder, start: int) -> list[Nats]:
    device = next(model.parameters()).device
    source, lengths = _padded([pair.source for pair in batch], device)
    inputs, _ = _padded([[start, *pair.target[:-1]] for pair in batch], device)
    targets, target_lengths = _padded([pair.target for pair in batch], device)
    is_real = torch.arange(targets.shape[1], device=device) < target_lengths[:, None]
    memory = model.encode(source, lengths=lengths)
    hidden = model.hidden(inputs, memory=memory, lengths=lengths)[is_real]
    nats = surprisals(model, hidden, targets[is_real])
    return np.split(nats, np.cumsum([len(pair.target) for pair in batch])[:-1])


def _padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """(rows, longest) ids, zeros after their ends, and (rows,) lengths."""
    lengths = [len(row) for row in rows]
    padded = np.zeros((len(rows), max(lengths)), dtype=np.int64)
    for place, row in enumerate(rows):
        padded[place, : len(row)] = row
    return torch.from_numpy(padded).to(device), torch.tensor(lengths, device=device)


@dataclass(frozen=True)
class PairsScored:
    """How far scoring has come.

    Attributes:
        tally: sums over the targets so far; `documents` counts pairs.
        blank: pairs left out so far, as one side of them is blank.
    """

    tally: Tally
    blank: int


def measure_pairs(
    model: EncoderDecoder, encoder: PairEncoder, pairs: Iterable[Pair], *, name: str
) -> Iterator[PairsScored]:
    """Score pairs of any number in bounded memory.

    Args:
        model: in eval mode.
        encoder: of the model.
        pairs: as `ParallelText.pairs` gives them.
        name: of the files, for messages.

    Yields:
        The sums after every few thousand pairs, at least once; the last are those of all.

    Raises:
        InputError: the model's output is not a number, or a pair is longer than learned positions reach.
    """
    tally, blank, rows = Tally(), 0, iter(pairs)
    while chunk := list(islice(rows, _PAIRS_AT_ONCE)):
        whole = [pair for pair in chunk if pair.source and pair.target]
        blank += len(chunk) - len(whole)
        tokens = encoder.encode(whole)
        _check_lengths(model, whole, tokens, name)
        for pair, nats in zip(whole, score_pairs(model, tokens, start=encoder.start), strict=True):
            if not np.isfinite(nats).all():
                raise InputError(f"{name}: line {pair.line}: the model's output is not a number; the model is damaged")
            tally.add(nats)
            tally.documents += 1
            tally.words += len(pair.target.split())
            tally.bytes += len(pair.target.encode())
        yield PairsScored(tally, blank)
    yield PairsScored(tally, blank)


def _check_lengths(model: EncoderDecoder, pairs: Sequence[Pair], tokens: Sequence[TokenPair], name: str) -> None:
    limit = model.config.context_length
    if model.config.positions != "learned":
        return
    for pair, ids in zip(pairs, tokens, strict=True):
        longest = max(len(ids.source), len(ids.target))
        if longest > limit:
            raise InputError(
                f"{name}: line {pair.line} has {longest:,} tokens, but the model's positions end at {limit:,}; "
                "leave it out"
            )
