"""Text classification by a masked model with a classification head, or by a decoder that ranks completions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
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
from lm.data.bucketing import batched, length_batches
from lm.data.rows import truncate_text
from lm.decoding.session import DecodeSession
from lm.engine.engine import OutputSpec
from lm.engine.selection import plan_engines
from lm.errors import UsageError, check_not_nan
from lm.model.transformer import DecoderOnly, EncoderOnly
from lm.text.records import parse_label
from lm.tokenizer.special_tokens import SpecialTokenFrame, build_example_frame
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
        for batch in batched(texts, self.batch_size):
            yield from self._classify(batch)

    @torch.inference_mode()
    def _classify(self, texts: Sequence[str]) -> Iterator[ClassifiedText]:
        frame, config = build_example_frame(self.tokenizer), self.model.config
        rows = RaggedArray.from_rows(
            [
                truncate_text(frame.wrap(ids), context=config.context_length)
                for ids in self.tokenizer.encode_batch(list(texts))
            ]
        )
        device = next(self.model.parameters()).device
        tokens, lengths = (torch.from_numpy(ids).to(device) for ids in (rows.to_padded(0), rows.lengths()))
        probabilities = self.model(tokens, lengths=lengths)[:, 0].float().softmax(-1).tolist()
        for text, text_probabilities in zip(texts, probabilities, strict=True):
            yield _rank_labels(text, config.labels, text_probabilities)


@dataclass(frozen=True)
class CompletionClassifier:
    """Classifies texts with a decoder: the label is the most probable completion of the text.

    The log-probability of a label is the sum over its tokens and the end-of-example token, so that a label can be a
    prefix of another. Probabilities are normalised over the labels.

    Attributes:
        completions: of each label, with its delimiter.
        batch_size: pairs of text and label per batch; affects only speed.
    """

    model: DecoderOnly
    tokenizer: Tokenizer
    completions: Sequence[str]
    batch_size: int = 16

    def __post_init__(self) -> None:
        """UsageError unless there are two or more labels, which fit into the context and differ in their tokens."""
        if len(self.completions) < 2:
            raise UsageError("a classifier needs two or more labels")
        if self._max_text_tokens < 0:
            longest = max(self.labels, key=len)
            raise UsageError(f"label {longest!r} does not fit into the context")
        for keys, problem in ((self._suffixes, "have the same tokens"), (self.labels, "are written in two ways")):
            counts = Counter[object](keys)
            if alike := [label for label, key in zip(self.labels, keys, strict=True) if counts[key] > 1]:
                named = " and ".join(map(repr, alike[:2]))
                raise UsageError(f"labels {named} {problem}: the model can't tell them apart")

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(map(parse_label, self.completions))

    @cached_property
    def _frame(self) -> SpecialTokenFrame:
        return build_example_frame(self.tokenizer)

    @cached_property
    def _ids(self) -> list[tuple[int, ...]]:
        encoded = self.tokenizer.encode_batch(list(self.completions))
        return [(*ids.tolist(), *self._frame.after) for ids in encoded]

    @cached_property
    def _common_prefix(self) -> tuple[int, ...]:
        """Tokens that all completions start with, which are prefilled with the text; each has others after them."""
        columns = takewhile(lambda tokens: len({*tokens}) == 1, zip(*self._ids, strict=False))
        return tuple(tokens[0] for tokens in columns)

    @cached_property
    def _suffixes(self) -> list[tuple[int, ...]]:
        return [ids[len(self._common_prefix) :] for ids in self._ids]

    @property
    def _max_text_tokens(self) -> int:
        """Tokens of a text that fit with the longest completion, whose last token is only predicted."""
        return self.model.config.context_length + 1 - len(self._frame.before) - max(map(len, self._ids))

    def classify(self, texts: Iterable[str]) -> Iterator[ClassifiedText]:
        """Classify texts, in order. A text longer than the context is truncated at its start.

        Raises:
            InputError: the tokenizer has no token for a character, or the model's output is not a number.
        """
        for chunk in batched(texts, _SORT_WINDOW):
            probabilities = self.probabilities(self.tokenizer.encode_batch(chunk)).tolist()
            for text, text_probabilities in zip(chunk, probabilities, strict=True):
                yield _rank_labels(text, self.labels, text_probabilities)

    @torch.inference_mode()
    def probabilities(self, prompts: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
        """Return (prompts, labels) probabilities; prompts are IDs without start of text."""
        scores = torch.zeros(len(prompts), len(self.completions), dtype=torch.float64)
        plan = plan_engines(self.model, tokens=max(map(len, self._suffixes)))
        read = [
            [*self._frame.before, *ids[max(0, len(ids) - self._max_text_tokens) :].tolist(), *self._common_prefix]
            for ids in prompts
        ]
        rows = max(1, self.batch_size // len(self.completions))
        for numbers in length_batches(list(map(len, read)), rows=rows):
            session = DecodeSession(plan)
            following = session.add([read[number] for number in numbers]).last_logits
            scores[numbers] = self._log_probabilities(session, following.log_softmax(-1))
        return scores.softmax(-1).numpy()

    def _log_probabilities(self, session: DecodeSession, following: Tensor) -> Tensor:
        """(rows, labels) log-probabilities of the suffixes of all labels, float64 on the CPU.

        Args:
            session: with a row for each text; it has the same rows again afterwards.
            following: (rows, vocabulary) log-probabilities of the next token.
        """
        lengths, chunks = list(map(len, session.tokens)), []
        suffixes_per_chunk = max(1, self.batch_size // len(lengths))
        for suffixes in (
            self._suffixes[first : first + suffixes_per_chunk]
            for first in range(0, len(self._suffixes), suffixes_per_chunk)
        ):
            ids = torch.from_numpy(RaggedArray.from_rows(suffixes).to_padded(IGNORE_INDEX)).to(
                following.device
            )  # (labels, longest)
            scores = following[:, ids[:, 0]].cpu().double()  # (rows, labels)
            if (n := ids.shape[1] - 1) > 0:
                session.select([row for row in range(len(lengths)) for _ in suffixes])
                logits = session.extend(
                    ids[:, :-1].clamp(min=0).repeat(len(lengths), 1), OutputSpec(logits_to_keep=n)
                ).logits
                assert logits is not None
                nats = F.cross_entropy(
                    logits.flatten(0, 1),
                    ids[:, 1:].repeat(len(lengths), 1).flatten(),
                    ignore_index=IGNORE_INDEX,
                    reduction="none",
                )
                scores -= nats.cpu().double().view(len(lengths), len(suffixes), n).sum(-1)
                session.truncate([length for length in lengths for _ in suffixes])
                session.select(range(0, len(session), len(suffixes)))
            chunks.append(scores)
        return torch.cat(chunks, dim=1)


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
    if isinstance(model, EncoderOnly) and model.config.labels:
        if completions:
            settled = "this run has an output for each of its labels, and can't choose among others"
            raise UsageError(f"{folder}: {settled}; leave them out")
        return Classifier(model, loaded.tokenizer, batch_size)
    if not isinstance(model, DecoderOnly) or model.config.translates:
        raise UsageError(f"{folder}: this run {model.config.purpose}; it does not classify texts")
    completions = completions or loaded.config.label_completions
    if not completions:
        raise UsageError(
            f"{folder}: no labels are recorded in this run; name a file of examples that have all of them",
        )
    return CompletionClassifier(model, loaded.tokenizer, completions, batch_size)


def _rank_labels(text: str, labels: Sequence[str], probabilities: Sequence[float]) -> ClassifiedText:
    """Sort the labels of a text by probability; InputError if these are not numbers."""
    check_not_nan(probabilities[0])
    return ClassifiedText(text, dict(sorted(zip(labels, probabilities, strict=True), key=lambda pair: -pair[1])))
