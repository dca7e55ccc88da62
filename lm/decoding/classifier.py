"""Text classification by a masked model with a classification head, or by a decoder that ranks completions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from lm.checkpoint import LoadedModel
from lm.config.data import IGNORE_INDEX
from lm.corpus.ragged import RaggedArray
from lm.data.batch import batched, length_batches
from lm.data.rows import truncate_text
from lm.decoding.session import DecodeSession
from lm.engine.engine import OutputSpec
from lm.engine.selection import plan_engines
from lm.errors import UsageError, check_not_nan
from lm.model.transformer import DecoderOnly, EncoderOnly
from lm.text.records import parse_label
from lm.tokenizer.special_tokens import build_example_frame
from lm.tokenizer.tokenizer import Tokenizer

_SORT_WINDOW = 1024
"""Texts that are sorted by length together."""


@dataclass(frozen=True, slots=True)
class ClassifiedText:
    """A text with its label.

    Attributes:
        probabilities: of each label, the most probable first.
    """

    text: str
    probabilities: Mapping[str, float]

    @property
    def label(self) -> str:
        return next(iter(self.probabilities))


@dataclass(frozen=True)
class Classifier:
    """Classifies texts with a masked model.

    Attributes:
        batch_size: texts per batch; affects only speed.
    """

    model: EncoderOnly
    tokenizer: Tokenizer
    batch_size: int = 16

    @property
    def labels(self) -> tuple[str, ...]:
        return self.model.config.labels

    def classify(self, texts: Iterable[str]) -> Iterator[ClassifiedText]:
        """Classify texts, in order. A text longer than the context is truncated at its end.

        Raises:
            InputError: the tokenizer has no token for a character, or the model's output is not a number.
        """
        frame, device = build_example_frame(self.tokenizer), next(self.model.parameters()).device
        context = self.model.config.context_length
        for batch in batched(texts, self.batch_size):
            encoded = [truncate_text(frame.wrap(ids), context=context) for ids in self.tokenizer.encode_batch(batch)]
            rows = RaggedArray.from_rows(encoded)
            tokens, lengths = (torch.from_numpy(ids).to(device) for ids in (rows.to_padded(0), rows.lengths()))
            with torch.inference_mode():
                probabilities = self.model(tokens, lengths=lengths)[:, 0].float().softmax(-1).tolist()
            yield from map(_rank_labels, batch, [self.labels] * len(batch), probabilities)


class CompletionClassifier:
    """Classifies texts with a decoder: the label is the most probable completion of the text.

    The log-probability of a label is the sum over its tokens and the end-of-example token, so that a label can be a
    prefix of another. Probabilities are normalised over the labels.
    """

    def __init__(
        self, model: DecoderOnly, tokenizer: Tokenizer, completions: Sequence[str], batch_size: int = 16
    ) -> None:
        """Encode the labels.

        Args:
            completions: of each label, with its delimiter.
            batch_size: pairs of text and label per batch; affects only speed.

        Raises:
            UsageError: there are fewer than two, or they don't fit into the context, or have the same tokens.
        """
        self.model, self.tokenizer, self.batch_size = model, tokenizer, batch_size
        self.labels = tuple(map(parse_label, completions))
        frame = build_example_frame(tokenizer)
        self._start, encoded = list(frame.before), tokenizer.encode_batch(list(completions))
        ids = [(*completion.tolist(), *frame.after) for completion in encoded]
        if len({*self.labels}) < max(2, len(ids)) or len({*ids}) < len(ids):
            raise UsageError("a classifier needs two or more labels, each with tokens of its own")
        columns = takewhile(lambda tokens: len({*tokens}) == 1, zip(*ids, strict=False))
        self._common = [tokens[0] for tokens in columns]  # of all completions, prefilled with the text
        self._suffixes = [completion[len(self._common) :] for completion in ids]
        # The last token of a completion is only predicted.
        self._max_text_tokens = model.config.context_length + 1 - len(self._start) - max(map(len, ids))
        if self._max_text_tokens < 0:
            raise UsageError(f"label {max(self.labels, key=len)!r} does not fit into the context")

    def classify(self, texts: Iterable[str]) -> Iterator[ClassifiedText]:
        """Classify texts, in order. A text longer than the context is truncated at its start.

        Raises:
            InputError: the tokenizer has no token for a character, or the model's output is not a number.
        """
        for chunk in batched(texts, _SORT_WINDOW):
            probabilities = self.probabilities(self.tokenizer.encode_batch(chunk)).tolist()
            yield from map(_rank_labels, chunk, [self.labels] * len(chunk), probabilities)

    @torch.inference_mode()
    def probabilities(self, prompts: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
        """Return (prompts, labels) probabilities; prompts are IDs without start of text."""
        scores = torch.zeros(len(prompts), len(self.labels), dtype=torch.float64)
        plan, most = plan_engines(self.model, tokens=max(map(len, self._suffixes))), self._max_text_tokens
        read = [[*self._start, *ids[max(0, len(ids) - most) :].tolist(), *self._common] for ids in prompts]
        for numbers in length_batches(list(map(len, read)), rows=max(1, self.batch_size // len(self.labels))):
            session = DecodeSession(plan)
            following = session.add([read[number] for number in numbers]).last_logits.log_softmax(-1)
            chunks = batched(self._suffixes, max(1, self.batch_size // len(numbers)))
            scores[numbers] = torch.cat([_score_suffixes(session, following, chunk) for chunk in chunks], dim=1)
        return scores.softmax(-1).numpy()


def _score_suffixes(session: DecodeSession, following: Tensor, suffixes: Sequence[tuple[int, ...]]) -> Tensor:
    """(rows, suffixes) log-probabilities, float64 on the CPU.

    Args:
        session: with a row for each text; it has the same rows again afterwards.
        following: (rows, vocabulary) log-probabilities of the next token.
    """
    lengths, size = list(map(len, session.tokens)), len(suffixes)
    ids = torch.from_numpy(RaggedArray.from_rows(suffixes).to_padded(IGNORE_INDEX)).to(following.device)
    scores = following[:, ids[:, 0]].cpu().double()
    if (n := ids.shape[1] - 1) > 0:
        session.select([row for row in range(len(lengths)) for _ in suffixes])
        read = ids[:, :-1].clamp(min=0).repeat(len(lengths), 1)
        logits = session.extend(read, OutputSpec(logits_to_keep=n)).logits
        assert logits is not None
        targets = ids[:, 1:].repeat(len(lengths), 1).flatten()
        nats = F.cross_entropy(logits.flatten(0, 1), targets, ignore_index=IGNORE_INDEX, reduction="none")
        scores -= nats.cpu().double().view(len(lengths), size, n).sum(-1)
        session.truncate([length for length in lengths for _ in suffixes])
        session.select(range(0, len(session), size))
    return scores


def build_classifier(
    loaded: LoadedModel, completions: Sequence[str] = (), *, batch_size: int = 16
) -> Classifier | CompletionClassifier:
    """Build the classifier of a run: a masked model with labels, or a decoder with completions.

    Args:
        completions: labels of a decoder [default: those recorded in the run].

    Raises:
        UsageError: the run is not a classifier, or its labels are fixed.
    """
    model, folder = loaded.model, loaded.folder
    if isinstance(model, EncoderOnly) and model.config.labels and not completions:
        return Classifier(model, loaded.tokenizer, batch_size)
    if not isinstance(model, DecoderOnly) or model.config.translates:
        own = " among other labels" if completions else ""
        raise UsageError(f"{folder}: this run {model.config.purpose}; it does not classify texts{own}")
    completions = completions or loaded.config.label_completions
    if not completions:
        raise UsageError(f"{folder}: no labels are recorded in this run; name a file of examples that have all of them")
    return CompletionClassifier(model, loaded.tokenizer, completions, batch_size)


def _rank_labels(text: str, labels: Sequence[str], probabilities: Sequence[float]) -> ClassifiedText:
    """Sort the labels of a text by probability; InputError if these are not numbers."""
    check_not_nan(probabilities[0])
    return ClassifiedText(text, dict(sorted(zip(labels, probabilities, strict=True), key=lambda pair: -pair[1])))
